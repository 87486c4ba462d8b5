// Which of two ways of copying into a ring suits the place of the two ranks at present.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace shoal::shm {

/// How a payload is written into its slot.
enum class CopyWay : std::uint8_t {
  cached,     ///< ordinary stores: best where both ranks share a cache
  streaming,  ///< stores past the cache: best where the slot's lines would have to come from a distant cache first
};

/// Tells near ranks from far ones by the time that a line takes which the peer has just written, again and again, because a
/// hypervisor may move a virtual core to another cache at any time.
///
/// A line from a core behind the same last-level cache takes 30 to 60 ns on the machines of today, one from another cache or
/// socket 100 to 250. What disturbs a sample only makes it longer, so the quickest of kSamples counts. (Timing the two ways of
/// copying themselves does not tell: the sender sees the cost of writing, but streaming moves cost to the reader.) Thread rule:
/// one thread at a time.
class CopyChoice {
 public:
  static constexpr int kSamples = 8;
  static constexpr double kNearNs = 80;

  /// A line that the peer had written took so long to read.
  void record(double fetch_ns) noexcept {
    quickest_ns_ = std::min(quickest_ns_, fetch_ns);
    if (++samples_ < kSamples) return;
    chosen_ = quickest_ns_ > kNearNs ? CopyWay::streaming : CopyWay::cached;
    samples_ = 0;
    quickest_ns_ = kNever;
  }

  [[nodiscard]] CopyWay chosen() const noexcept { return chosen_; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  CopyWay chosen_ = CopyWay::cached;
  int samples_ = 0;
  double quickest_ns_ = kNever;
};

/// What two looks at the clock in a row differ by, in nanoseconds: to be taken off what is timed with it.
inline double clock_cost_ns() noexcept {
  using Clock = std::chrono::steady_clock;
  auto quickest = Clock::duration::max();
  for (int i = 0; i < 32; ++i) {
    const auto start = Clock::now();
    quickest = std::min(quickest, Clock::now() - start);
  }
  return std::chrono::duration<double, std::nano>(quickest).count();
}

}  // namespace shoal::shm
