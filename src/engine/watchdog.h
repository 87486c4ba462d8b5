// Notices that a call waits for long, before its deadline ends it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace shoal {

/// Thread rule: one thread at a time (the driver).
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;

  /// `after`: how long a call may wait before it is worth a word; zero: never.
  explicit Watchdog(Clock::duration after) noexcept : after_(after) {}

  /// To be told now and then which call is the oldest in flight. Says how long that one has been seen waiting where it is time
  /// for a word: after `after`, then each time the wait has doubled.
  std::optional<Clock::duration> look(std::uint64_t oldest_call, Clock::time_point now) noexcept {
    if (after_ == Clock::duration::zero()) return std::nullopt;
    if (!call_ || *call_ != oldest_call) {
      call_ = oldest_call;
      since_ = now;
      next_ = since_ + after_;
      return std::nullopt;
    }
    if (now < next_) return std::nullopt;
    const Clock::duration waited = now - since_;
    next_ = now + waited;
    return waited;
  }

 private:
  Clock::duration after_;
  std::optional<std::uint64_t> call_;
  Clock::time_point since_;
  Clock::time_point next_;
};

}  // namespace shoal
