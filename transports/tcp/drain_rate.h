// How fast a socket's bytes reach the other side.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace shoal::tcp {

/// Measured over times in which the socket never ran dry, since those in which it did say how much it was given. One that came
/// out slow is given nothing while others are faster, and so never measured again, whatever its rate is by then: so it is tried
/// with a tile after others have carried kFirstPatience bytes; after twice as many each time that it still is slow. A plain
/// value.
class DrainRate {
 public:
  using Clock = std::chrono::steady_clock;

  /// To be called each time before the socket is given more. `drained`: bytes that the other side's kernel has acknowledged,
  /// since the socket exists; `waiting`: those that it has not.
  void look(Clock::time_point now, std::uint64_t drained, std::uint64_t waiting) noexcept {
    end_trial(now, drained, waiting);
    seen_ = now;
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

  /// Another socket was given so many bytes while this one had nothing to do.
  void passed_over(std::uint64_t bytes) noexcept { passed_over_ += bytes; }
  /// Whether a tile should show what its rate is by now.
  [[nodiscard]] bool trial_is_due() const noexcept { return passed_over_ >= time_limit_; }
  /// It is given something and had nothing to do.
  void given(Clock::time_point now, std::uint64_t drained) noexcept {
    if (trial_is_due()) trial_ = {now, drained, bytes_per_us_};
    passed_over_ = 0;
  }

 private:
  // Shorter ones show bursts and not the wire.
  static constexpr std::chrono::milliseconds kSample{5};
  static constexpr std::uint64_t kSampleBytes = 64 << 10;  // less than half of a tile: a slow socket has one at a time
  static constexpr double kWeight = 0.4;                   // of a new sample

  static constexpr std::uint64_t kFirstPatience = 8 << 20;
  static constexpr std::uint64_t kMostPatience = 128 << 20;

  struct Trial {
    Clock::time_point from{};  // none where zero
    std::uint64_t from_bytes = 0;
    double rate_before = 0;
  };

  // The bytes had come at the latest by now, and not yet when this was last looked at, which may be long ago: between messages
  // nobody looks. Where the two tell neither a fast socket nor how slow it is, the rate stays what it was.
  void end_trial(Clock::time_point now, std::uint64_t drained, std::uint64_t waiting) noexcept {
    if (trial_.from == Clock::time_point{} || waiting > 0 || drained == trial_.from_bytes) return;
    const double us = std::max(1.0, std::chrono::duration<double, std::micro>(now - trial_.from).count());
    const double rate = static_cast<double>(drained - trial_.from_bytes) / us;
    const bool fast = rate > 2 * trial_.rate_before;
    time_limit_ = fast ? kFirstPatience : std::min(2 * time_limit_, kMostPatience);
    if (fast || 2 * (seen_ - trial_.from) >= now - trial_.from) bytes_per_us_ = rate;
    trial_ = {};
  }

  Clock::time_point from_{};
  std::uint64_t from_bytes_ = 0;
  double bytes_per_us_ = 0;
  bool warms_up_ = false;
  std::uint64_t passed_over_ = 0;
  std::uint64_t time_limit_ = kFirstPatience;
  Trial trial_;
  Clock::time_point seen_{};  // when it was last looked at
};

}  // namespace shoal::tcp
