// StragglerDetector: which rank causes a wait, by the wait messages that waiting ranks send each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/diagnosis/rank_set.h"
#include "src/diagnosis/signature.h"

namespace shoal {

/// For which ranks one rank waits in a call, as that rank sees it.
struct Late {
  std::vector<int> absent;  ///< not in the call
  std::vector<int> slow;    ///< in it, but data is missing
};

/// Most ranks that a rank waits for only wait in turn. A missing rank is seen by its neighbours in the schedule alone: with a
/// leader for each node, by one rank of the job. So a waiting rank sends all ranks a wait message now and then, with the ranks
/// for which it waits. Shortly before its deadline it asks all ranks. A waiting rank answers; a rank that does not answer
/// causes the wait.
///
/// With more than kFewRanks, so many messages would be a storm whenever one rank is late. There a waiting rank asks the ranks
/// for which it waits, each once in a call. An answer names those that cause the wait as far as the answering rank knows by
/// then; they are asked next. So each answer leads twice as far as the one before, and in a ring of P ranks each rank asks
/// log2 P others until it knows the rank that causes the wait. The question before the deadline goes to all ranks, or with more
/// than kMostAsked, again to those that cause the wait.
///
/// Reads no clock. Thread rule: one thread at a time (the driver).
class StragglerDetector {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kNoCall = ~std::uint64_t{0};

  /// A wait message: what a waiting rank sends to all ranks.
  struct Words {
    std::uint64_t sequence = kNoCall;  ///< its oldest call in flight
    std::uint64_t asks = 0;            ///< 1: the receivers are to answer with their own
    RankSet absent;
    RankSet slow;
    CallSignature call;  ///< its signature
  };
  /// As sent, in at most kMostBytes: few ranks take few bytes. Of a set whose ranks lie in more than kMostParts parts, the
  /// ranks in the first ones: a rank that waits for so many sees each of them itself.
  static std::vector<std::byte> to_bytes(const Words& words);
  static constexpr std::size_t kMostBytes = 4096;
  static constexpr std::size_t kMostParts = 202;  ///< of 64 ranks each
  /// The wait message of a peer; nothing where these bytes are none.
  static std::optional<Words> parse(std::span<const std::byte> bytes);

  StragglerDetector(int rank, int ranks);

  /// To be called now and then, while calls are in flight, with the oldest of them and the first of their deadlines. True
  /// where it is time to send the message of tell().
  bool due(std::uint64_t oldest_call, Clock::time_point deadline, Clock::time_point now);
  /// The wait message to send now.
  [[nodiscard]] Words tell(const Late& late, Clock::time_point now);
  static constexpr std::size_t kFewRanks = 16;
  static constexpr std::size_t kMostAsked = 1024;
  /// To whom they go.
  struct Receivers {
    bool all = false;        ///< to every rank, as they are; else:
    std::vector<int> told;   ///< ranks that have asked
    std::vector<int> asked;  ///< ranks that are to answer
  };
  /// To be called once for each tell(), with the same arguments and its result.
  [[nodiscard]] Receivers receivers(const Words& words, const Late& late);
  void hear(int rank, const Words& words, Clock::time_point now);
  /// When due() has to be called again at the latest.
  [[nodiscard]] Clock::time_point next() const;
  /// When a call with `deadline` may fail: later than that where the question was sent late, as on a machine that had no time
  /// for this process, so that the other ranks can answer.
  [[nodiscard]] Clock::time_point verdict_at(Clock::time_point deadline) const;

  /// Which ranks delay a call, by the wait messages received. Ranks in ascending order.
  struct Verdict {
    std::vector<int> absent;   ///< not in the call
    std::vector<int> slow;     ///< in it, but data is missing, and no wait message of them counts
    std::vector<int> waiting;  ///< this rank waits for them, and they wait in turn
  };
  [[nodiscard]] Verdict verdict(std::uint64_t call, const Late& late) const;
  /// Calls `visit(rank, words)` with the last wait message of each rank.
  template <typename Visit>
  void each_heard(Visit visit) const {
    for (const auto& [rank, heard] : heard_) visit(rank, heard.words);
  }

 private:
  struct Heard {
    Words words;
    Clock::time_point at{};
  };
  [[nodiscard]] bool has_few_ranks() const noexcept { return ranks_ <= kFewRanks; }
  [[nodiscard]] bool counts(const Heard& heard, std::uint64_t call) const;

  const int rank_;
  const std::size_t ranks_;
  std::unordered_map<int, Heard> heard_;  // the latest of each rank that has sent any: most never do

  std::uint64_t sequence_ = kNoCall;  // the oldest call when due() was last called
  Clock::time_point since_{};
  Clock::duration tell_after_{};  // waiting time before the next message; doubles
  Clock::time_point tell_at_ = Clock::time_point::max();
  Clock::time_point told_at_ = Clock::time_point::min();  // last message sent in this call
  bool asked_by_others_ = false;                          // a rank has asked since then

  // Where there are more than kFewRanks.
  std::vector<int> askers_;     // ranks that have asked; in this call, or not answered yet
  std::size_t answered_ = 0;    // of them, with told_
  Words told_;                  // what they were answered
  std::vector<bool> asked_in_;  // by rank: whether this one has asked it in this call
  bool by_time_ = false;        // the last tell() was due because of how long the call waits
  bool asking_ = false;         // this one has waited for so long in this call that it asks
  bool heard_more_ = false;     // since it last asked, an answer about this call has arrived

  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::duration lead_{};  // how long before the deadline to ask
  bool asked_ = false;
  Clock::time_point asked_at_{};
  Clock::time_point excused_until_{};  // this rank itself was late: none of its calls fails before
};

}  // namespace shoal
