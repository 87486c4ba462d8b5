// StragglerDetector: what ranks that wait tell each other, and who is missing by it.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/diagnosis/flight_record.h"

namespace shoal {

/// For whom one rank waits in a call, as it sees that itself.
struct Late {
  std::vector<int> absent;  ///< not in the call
  std::vector<int> slow;    ///< in it, but data is missing
};

/// Most ranks that a rank waits for only wait in turn, and a missing one is seen by its neighbours in the schedule alone: with
/// a leader for each node, by one rank of the job. So who waits tells all others for whom, now and then; and shortly before its
/// deadline a rank asks everybody. Who waits answers; who does not answer is the one that holds the others up.
///
/// Looks at no clock. Thread rule: one thread at a time (the driver).
class StragglerDetector {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kNoCall = ~std::uint64_t{0};

  /// What a rank tells the others.
  struct Words {
    std::uint64_t sequence = kNoCall;  ///< its oldest call in flight
    std::uint64_t asks = 0;            ///< 1: the others are to say theirs
    RankSet absent;
    RankSet slow;
    CallSignature call;  ///< that one
  };
  /// As it travels: of each set no more than reaches its last rank, so that few ranks take few bytes.
  static std::vector<std::byte> to_bytes(const Words& words);
  /// What a rank has said; nothing where these are no Words.
  static std::optional<Words> parse(std::span<const std::byte> bytes) noexcept;

  StragglerDetector(int rank, int ranks);

  /// To be told now and then, while calls are in flight, which is the oldest and which of their deadlines comes first. True
  /// where it is time to tell().
  bool due(std::uint64_t oldest_call, Clock::time_point deadline, Clock::time_point now);
  /// What the others are to be told now.
  [[nodiscard]] Words tell(const Late& late, Clock::time_point now);
  void hear(int rank, const Words& words, Clock::time_point now);
  /// When due() has to be asked again at the latest.
  [[nodiscard]] Clock::time_point next() const;
  /// When a call with `deadline` may be given up: later than that where the question was, as on a machine that had no time for
  /// this process, so that there is somebody who can answer.
  [[nodiscard]] Clock::time_point verdict_at(Clock::time_point deadline) const;

  /// Who holds a call up, by what has been heard. Ranks in ascending order.
  struct Verdict {
    std::vector<int> absent;   ///< not in the call
    std::vector<int> slow;     ///< in it, but data is missing, and nothing is heard of them
    std::vector<int> waiting;  ///< this rank waits for them, and they wait in turn
  };
  [[nodiscard]] Verdict verdict(std::uint64_t call, const Late& late) const;
  /// Calls `visit(rank, words)` with what each rank has said last.
  template <typename Visit>
  void each_heard(Visit visit) const {
    for (const auto& [rank, heard] : heard_) visit(rank, heard.words);
  }

 private:
  struct Heard {
    Words words;
    Clock::time_point at{};
  };
  [[nodiscard]] bool counts(const Heard& heard, std::uint64_t call) const;

  const int rank_;
  const std::size_t ranks_;
  std::unordered_map<int, Heard> heard_;  // the latest of each rank that has said something: most never do

  std::uint64_t sequence_ = kNoCall;  // the oldest call when due() was last asked
  Clock::time_point since_{};
  Clock::duration tell_after_{};  // of waiting; doubles
  Clock::time_point tell_at_ = Clock::time_point::max();
  Clock::time_point told_at_ = Clock::time_point::min();  // in this call
  bool asked_by_others_ = false;                          // since then

  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::duration lead_{};  // of the question before the deadline
  bool asked_ = false;
  Clock::time_point asked_at_{};
  Clock::time_point excused_until_{};  // this rank itself was late: it gives up none of its calls before
};

}  // namespace shoal
