// KeeperRole: which rank of a host speaks for it, and when another takes over.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace shoal {

/// What the board of a host says about its keeper. Written as one by compare-and-swap: of two ranks that claim the same term,
/// one succeeds.
struct KeeperClaim {
  std::uint64_t term = 0;  ///< 0: no rank has claimed
  int rank = -1;           ///< of the job
  std::uint64_t beat = 0;  ///< grows every kBeat while the keeper runs

  bool operator==(const KeeperClaim&) const = default;
};

/// One rank's view. The rank with the latest claim is the keeper. The ranks after it are its successors (after the last rank
/// comes the first). The first successor takes over at once when the keeper has ended, and after kLost when the beat has
/// stopped, as after SIGSTOP. Each further successor waits kLost longer, because those before it may be stopped as well. A
/// keeper that continues after it was stopped reads another rank's claim and gives up its role: it never claims back.
///
/// Reads no clock. Thread rule: one thread at a time.
class KeeperRole {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::chrono::milliseconds kBeat{100};
  static constexpr std::chrono::milliseconds kLost{500};

  /// `ranks`: of the host, ascending; `own` is one of them.
  KeeperRole(std::vector<int> ranks, int own, Time now);

  /// `rank` has died or left.
  void on_end(int rank, Time now);
  /// What the board says now. Returns the term to claim, where it is time for that: this rank is the keeper once the board says
  /// so.
  std::optional<std::uint64_t> look(const KeeperClaim& claim, Time now);
  [[nodiscard]] bool is_keeper() const noexcept { return claim_.rank == own_; }
  /// The keeper by the last look(), or the rank that follows it where it has ended; -1: all ranks have.
  [[nodiscard]] int keeper() const noexcept;
  /// When to look again at the latest; no time: when a rank ends.
  [[nodiscard]] Time next_look() const noexcept { return is_keeper() ? Time::max() : claim_at(); }

 private:
  /// When this rank is to claim.
  [[nodiscard]] Time claim_at() const noexcept;
  [[nodiscard]] bool is_present(int rank) const noexcept;
  /// The place in ranks_ of the first one to take over.
  [[nodiscard]] std::ptrdiff_t first_successor() const noexcept;

  std::vector<int> ranks_;  // that have not ended
  const int own_;
  KeeperClaim claim_;
  bool keeper_ended_ = true;  // or there has been none
  Time changed_;              // when the board last changed, or the keeper ended
};

}  // namespace shoal
