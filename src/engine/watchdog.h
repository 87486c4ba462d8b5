// Notices that a call waits for long, before its deadline ends it.
#pragma once

#include <algorithm>
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

  /// To be told now and then which call is the oldest in flight, and its deadline. Says how long that one has been seen waiting
  /// where it is time for a word: after `after`, or half of what it has where that is less, then each time the wait has
  /// doubled.
  std::optional<Clock::duration> look(std::uint64_t oldest_call, Clock::time_point deadline, Clock::time_point now) noexcept {
    if (!call_ || *call_ != oldest_call) {
      call_ = oldest_call;
      since_ = now;
      const bool speaks = after_ != Clock::duration::zero() && deadline > now;
      next_ = speaks ? now + std::min(after_, (deadline - now) / 2) : Clock::time_point::max();
      return std::nullopt;
    }
    if (now < next_) return std::nullopt;
    const Clock::duration waited = now - since_;
    next_ = now + waited;
    return waited;
  }
  /// How long `call` has been seen waiting, where it is the oldest.
  [[nodiscard]] std::optional<Clock::duration> waited(std::uint64_t call, Clock::time_point now) const noexcept {
    return call_ == call ? std::optional(now - since_) : std::nullopt;
  }
  /// When the call that look() was told of last is worth its next word.
  [[nodiscard]] Clock::time_point next() const noexcept { return next_; }

 private:
  Clock::duration after_;
  std::optional<std::uint64_t> call_;
  Clock::time_point since_;
  Clock::time_point next_ = Clock::time_point::max();
};

}  // namespace shoal
