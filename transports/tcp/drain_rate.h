// How fast a socket's bytes reach the peer's kernel.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace shoal::tcp {

/// Measured over times in which the socket always had bytes to send; other times show only how much it was given. A socket
/// with a low rate is given nothing while others are faster, and so would never be measured again, whatever its rate is by
/// then. So it is tried with a tile after the other sockets have carried kFirstTrialBytes bytes, and after twice as many each
/// time that it is still slow. A plain value.
class DrainRate {
 public:
  using Clock = std::chrono::steady_clock;

  /// To be called each time before the socket is given more bytes. `drained`: bytes that the peer's kernel has acknowledged
  /// since the socket exists; `waiting`: bytes that it has not acknowledged.
  void update(Clock::time_point now, std::uint64_t drained, std::uint64_t waiting) noexcept {
    end_trial(now, drained, waiting);
    seen_ = now;
    const std::uint64_t bytes = drained - from_bytes_;
    // The first bytes after an idle time only start the measurement: they may have passed faster than the network's steady
    // rate.
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

  /// 0: not measured.
  [[nodiscard]] double bytes_per_us() const noexcept { return bytes_per_us_; }

  /// Another socket was given this many bytes while this one was idle.
  void passed_over(std::uint64_t bytes) noexcept { passed_over_ += bytes; }
  /// Whether a tile should measure the current rate.
  [[nodiscard]] bool trial_is_due() const noexcept { return passed_over_ >= next_trial_bytes_; }
  /// The socket was idle and is given bytes.
  void given(Clock::time_point now, std::uint64_t drained) noexcept {
    if (trial_is_due()) trial_ = {now, drained, bytes_per_us_};
    passed_over_ = 0;
  }

 private:
  // Shorter samples show bursts and not the network's rate.
  static constexpr std::chrono::milliseconds kSample{5};
  static constexpr std::uint64_t kSampleBytes = 64 << 10;  // less than half of a tile: a slow socket has one at a time
  static constexpr double kWeight = 0.4;                   // of a new sample

  static constexpr std::uint64_t kFirstTrialBytes = 8 << 20;
  static constexpr std::uint64_t kMostTrialBytes = 128 << 20;

  struct Trial {
    Clock::time_point from{};  // zero: no trial is running
    std::uint64_t from_bytes = 0;
    double rate_before = 0;
  };

  // The bytes arrived between the previous update() and now. The previous update() may be long ago, because there are no calls
  // between messages. Where the two times show neither that the socket is fast nor how slow it is, the rate stays as it was.
  void end_trial(Clock::time_point now, std::uint64_t drained, std::uint64_t waiting) noexcept {
    if (trial_.from == Clock::time_point{} || waiting > 0 || drained == trial_.from_bytes) return;
    const double us = std::max(1.0, std::chrono::duration<double, std::micro>(now - trial_.from).count());
    const double rate = static_cast<double>(drained - trial_.from_bytes) / us;
    const bool fast = rate > 2 * trial_.rate_before;
    next_trial_bytes_ = fast ? kFirstTrialBytes : std::min(2 * next_trial_bytes_, kMostTrialBytes);
    if (fast || 2 * (seen_ - trial_.from) >= now - trial_.from) bytes_per_us_ = rate;
    trial_ = {};
  }

  Clock::time_point from_{};
  std::uint64_t from_bytes_ = 0;
  double bytes_per_us_ = 0;
  bool warms_up_ = false;
  std::uint64_t passed_over_ = 0;
  std::uint64_t next_trial_bytes_ = kFirstTrialBytes;
  Trial trial_;
  Clock::time_point seen_{};  // time of the latest update()
};

}  // namespace shoal::tcp
