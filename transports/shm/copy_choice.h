// Which of two ways of copying into a ring suits the place of the two ranks at present.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace shoal::shm {

/// How a payload is written into its slot.
enum class CopyWay : std::uint8_t {
  cached,     ///< ordinary stores: best where both ranks share a cache
  streaming,  ///< stores past the cache: best where the slot's lines would have to come from a distant cache first
};

/// Tells near ranks from far ones by the time that a line takes which the peer has just written, again and again, because a
/// hypervisor may move a virtual core to another cache at any time.
///
/// A line from a core behind the same last-level cache takes 20 to 60 ns on the machines of today, one from another cache or
/// socket 100 to 250. Single samples mislead both ways: an interrupt makes one longer, and a line that the processor fetched
/// ahead shows as nothing; so the majority of kSamples counts. (Timing the two ways of copying themselves does not tell: the
/// sender sees the cost of writing, but streaming moves cost to the reader.) Thread rule: one thread at a time.
class CopyChoice {
 public:
  static constexpr int kSamples = 9;
  static constexpr double kNearNs = 80;

  /// A line that the peer had written took so long to read.
  void record(double fetch_ns) noexcept {
    if (fetch_ns > kNearNs) ++far_;
    if (++samples_ < kSamples) return;
    chosen_ = 2 * far_ > kSamples ? CopyWay::streaming : CopyWay::cached;
    samples_ = 0;
    far_ = 0;
  }

  [[nodiscard]] CopyWay chosen() const noexcept { return chosen_; }

 private:
  CopyWay chosen_ = CopyWay::cached;
  int samples_ = 0;
  int far_ = 0;
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
