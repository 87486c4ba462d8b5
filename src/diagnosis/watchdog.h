// Notices that a call waits for long, before its deadline ends it.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace shoal {

/// Since when a call has been seen waiting, and when that is worth its next word.
struct Watch {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> since;
  Clock::time_point next = Clock::time_point::max();

  [[nodiscard]] std::optional<Clock::duration> waited(Clock::time_point now) const noexcept {
    return since ? std::optional(now - *since) : std::nullopt;
  }
};

/// To be told now and then of the calls in flight, oldest first. It looks at the oldest and at those that are to end before all
/// older ones: these the others wait for, or these end them.
class Watchdog {
 public:
  using Clock = Watch::Clock;

  /// `after`: how long a call may wait before it is worth a word; zero: never.
  explicit Watchdog(Clock::duration after) noexcept : after_(after) {}

  /// Before the oldest.
  void begin() noexcept { earliest_.reset(); }
  /// The next call. Says how long it has been seen waiting where it is time for a word: after `after`, or half of what its
  /// deadline leaves it where that is less, then each time the wait has doubled.
  std::optional<Clock::duration> look(Watch& watch, Clock::time_point deadline, Clock::time_point now) noexcept {
    if (earliest_ && deadline >= *earliest_) return std::nullopt;
    earliest_ = deadline;
    if (!watch.since) {
      watch.since = now;
      const bool speaks = after_ != Clock::duration::zero() && deadline > now;
      if (speaks) watch.next = now + std::min(after_, (deadline - now) / 2);
      return std::nullopt;
    }
    if (now < watch.next) return std::nullopt;
    const Clock::duration waited = now - *watch.since;
    watch.next = now + waited;
    return waited;
  }

 private:
  Clock::duration after_;
  std::optional<Clock::time_point> earliest_;  // of those that were told of
};

}  // namespace shoal
