// Chooses the way of copying into a ring, by the distance of the two ranks' cores at present.
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

/// Distinguishes near from distant ranks by the time of reading a cache line that the peer has just written. Measured again
/// and again, because a hypervisor may move a virtual core to another cache at any time.
///
/// A line from a core behind the same last-level cache takes 20 to 60 ns on today's machines, one from another cache or
/// socket 100 to 250 ns. Single samples mislead both ways: an interrupt makes one longer, and a prefetched line takes no
/// time. So the majority of kSamples counts. (Timing the two ways of copying themselves would mislead: the sender sees the
/// cost of writing, but streaming moves cost to the reader.) Thread rule: one thread at a time.
class CopyChoice {
 public:
  static constexpr int kSamples = 9;
  static constexpr double kNearNs = 80;

  /// Records how long it took to read a line that the peer had written.
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

/// The cost of reading the clock, in nanoseconds: to be subtracted from what is timed with it.
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
