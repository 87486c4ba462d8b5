// How fast a socket's bytes reach the other side.
#pragma once

#include <chrono>
#include <cstdint>

namespace shoal::tcp {

/// Measured over times in which the socket never ran dry, since those in which it did say how much it was given. A plain value.
class DrainRate {
 public:
  using Clock = std::chrono::steady_clock;

  /// To be called each time before the socket is given more. `drained`: bytes that the other side's kernel has acknowledged,
  /// since the socket exists; `waiting`: those that it has not.
  void look(Clock::time_point now, std::uint64_t drained, std::uint64_t waiting) noexcept {
    const std::uint64_t bytes = drained - from_bytes_;
    // The first bytes after a time without only start the clock: they may have passed faster than the wire goes on.
    const bool starts = waiting == 0 || from_ == Clock::time_point{};
    if (starts || (warms_up_ && bytes >= kSampleBytes)) {
      warms_up_ = starts;
      from_ = now;
      from_bytes_ = drained;
      return;
    }
    if (warms_up_ || now - from_ < kSample || bytes < kSampleBytes) return;
    const double sample = static_cast<double>(bytes) / std::chrono::duration<double, std::micro>(now - from_).count();
    bytes_per_us_ = bytes_per_us_ > 0 ? (1 - kWeight) * bytes_per_us_ + kWeight * sample : sample;
    from_ = now;
    from_bytes_ = drained;
  }

  /// 0: not known.
  [[nodiscard]] double bytes_per_us() const noexcept { return bytes_per_us_; }

 private:
  // Shorter ones show bursts and not the wire.
  static constexpr std::chrono::milliseconds kSample{5};
  static constexpr std::uint64_t kSampleBytes = 64 << 10;  // less than half of a tile: a slow socket has one at a time
  static constexpr double kWeight = 0.4;                   // of a new sample

  Clock::time_point from_{};
  std::uint64_t from_bytes_ = 0;
  double bytes_per_us_ = 0;
  bool warms_up_ = false;
};

}  // namespace shoal::tcp
