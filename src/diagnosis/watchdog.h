// Detects that a call waits for long, before its deadline ends it.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace shoal {

/// Since when a call has been seen waiting, and when the next warning is due.
struct Watch {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> since;
  Clock::time_point next = Clock::time_point::max();

  [[nodiscard]] std::optional<Clock::duration> waited(Clock::time_point now) const noexcept {
    return since ? std::optional(now - *since) : std::nullopt;
  }
};

/// To be called now and then for the calls in flight, oldest first. It considers the oldest call, and each one with a deadline
/// before those of all older calls: the other calls wait for these, or these end them.
class Watchdog {
 public:
  using Clock = Watch::Clock;

  /// `after`: how long a call may wait before a warning; zero: no warnings.
  explicit Watchdog(Clock::duration after) noexcept : after_(after) {}

  /// To be called before the oldest.
  void begin() noexcept { earliest_.reset(); }
  /// The next call. Returns how long it has been seen waiting where a warning is due: after `after`, or after half of the time
  /// to its deadline where that is less, then each time the wait has doubled.
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
  std::optional<Clock::time_point> earliest_;  // of the calls since begin()
};

}  // namespace shoal
