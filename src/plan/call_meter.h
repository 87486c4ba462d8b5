// CallMeter: how often calls of one kind ran, and how long they took.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal::internal {

/// Counts into bins that are at most 1/16 of their value wide, so the median is right within 3 % in fixed memory.
/// Thread rule: add() by the holder of the DriverLock (one thread at a time); the rest from any thread.
class CallMeter {
 public:
  CallMeter() = default;
  CallMeter(const CallMeter&) = delete;
  CallMeter& operator=(const CallMeter&) = delete;

  /// Counts one call that succeeded. Neither allocates nor waits.
  void add(std::chrono::nanoseconds time, double predicted_us) noexcept {
    // One writer at a time: no read-modify-write is needed, only that readers see whole values.
    increase(bins_[bin_of(static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0)))], std::uint32_t{1});
    increase(predicted_us_, predicted_us);
    increase(calls_, std::uint64_t{1});
  }

  [[nodiscard]] std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }
  /// The mean of what was predicted; 0 without calls.
  [[nodiscard]] double predicted_us() const noexcept {
    return calls() == 0 ? 0 : predicted_us_.load(std::memory_order_relaxed) / static_cast<double>(calls());
  }
  /// 0 without calls.
  [[nodiscard]] double median_us() const noexcept {
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBins; ++i) {
      seen += bins_[i].load(std::memory_order_relaxed);
      if (2 * seen >= calls() && seen > 0) return middle_ns(i) / 1000;
    }
    return 0;
  }

 private:
  static constexpr int kBitsOfBin = 4;
  static constexpr std::size_t kPerOctave = std::size_t{1} << kBitsOfBin;
  static constexpr std::size_t kBins = 40 * kPerOctave;  // up to 2^43 ns, more than two hours

  template <typename T>
  static void increase(std::atomic<T>& value, T by) noexcept {
    value.store(value.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  // The leading bit selects the octave, the four below it the bin. Below 16 ns every value has its own.
  static std::size_t bin_of(std::uint64_t ns) noexcept {
    if (ns < kPerOctave) return ns;
    const int octave = std::bit_width(ns) - 1 - kBitsOfBin;
    const std::size_t bin = static_cast<std::size_t>(octave + 1) * kPerOctave + ((ns >> octave) - kPerOctave);
    return std::min(bin, kBins - 1);
  }
  static double middle_ns(std::size_t bin) noexcept {
    if (bin < kPerOctave) return static_cast<double>(bin);
    const auto width = static_cast<double>(std::uint64_t{1} << (bin / kPerOctave - 1));
    return (static_cast<double>(bin % kPerOctave + kPerOctave) + 0.5) * width;
  }

  std::atomic<std::uint64_t> calls_{0};
  std::atomic<double> predicted_us_{0};
  std::array<std::atomic<std::uint32_t>, kBins> bins_{};
};

}  // namespace shoal::internal
