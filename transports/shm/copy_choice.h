// Which of two ways of copying into a ring is the faster one at present.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace shoal::shm {

/// How a payload is written into its slot.
enum class CopyWay : std::uint8_t {
  cached,     ///< ordinary stores: best where both ranks share a cache
  streaming,  ///< stores past the cache: best where the slot's lines would have to come from a distant cache first
};

/// Picks by measurement, again and again, because a hypervisor may move a virtual core to another cache at any time.
///
/// A round times kTimedTiles tiles each way, by the sender alone, and compares the quickest of each: what interrupts a copy
/// only makes it slower. Between two rounds nothing is timed; the pause doubles while the choice stays the same. Thread rule:
/// one thread at a time.
class CopyChoice {
 public:
  static constexpr std::uint64_t kTimedTiles = 4;
  static constexpr std::uint64_t kFirstPause = 32;
  static constexpr std::uint64_t kLongestPause = 256;
  /// The sender sees the cost of writing only; reading is cheaper from a cache near by. So streaming must win by this factor.
  static constexpr double kMargin = 1.05;

  struct Order {
    CopyWay way = CopyWay::cached;
    bool timed = false;  ///< record() must follow
  };

  /// The first `warm_up` tiles are not looked at: they take page faults.
  explicit CopyChoice(std::uint64_t warm_up = 0) noexcept : left_(warm_up) {}

  /// How to copy the next tile.
  [[nodiscard]] Order next() noexcept {
    if (left_ > 0) {
      --left_;
      return {chosen_, false};
    }
    return {timed_ < kTimedTiles ? chosen_ : other(chosen_), true};
  }

  /// What the tile of the last next() took; any unit per byte.
  void record(double cost) noexcept {
    double& best = best_[static_cast<std::size_t>(timed_ < kTimedTiles ? chosen_ : other(chosen_))];
    best = std::min(best, cost);
    if (++timed_ == 2 * kTimedTiles) end_round();
  }

  [[nodiscard]] CopyWay chosen() const noexcept { return chosen_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr CopyWay other(CopyWay way) noexcept { return way == CopyWay::cached ? CopyWay::streaming : CopyWay::cached; }

  void end_round() noexcept {
    const CopyWay winner = best_[0] > kMargin * best_[1] ? CopyWay::streaming : CopyWay::cached;
    pause_ = winner == chosen_ ? std::min(2 * pause_, kLongestPause) : kFirstPause;
    chosen_ = winner;
    left_ = pause_;
    timed_ = 0;
    best_.fill(kNever);
  }

  CopyWay chosen_ = CopyWay::cached;
  std::uint64_t left_;  ///< tiles until the next round
  std::uint64_t pause_ = kFirstPause;
  std::uint64_t timed_ = 0;                     ///< tiles of this round; first those of the chosen way
  std::array<double, 2> best_{kNever, kNever};  ///< by CopyWay
};

}  // namespace shoal::shm
