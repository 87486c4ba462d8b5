// How long a rank waits for its peers while they connect.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include <shoal/status.h>

namespace shoal {

/// A deadline, with an optional check that ends the wait earlier. The check is necessary because a peer that dies before it
/// has connected breaks no connection. Thread rule: one thread at a time.
class ConnectDeadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// `look`: ok, or why the wait is to end now. Called first after 0.1 s, since most start-ups are shorter, then at intervals
  /// that grow to 0.25 s.
  // NOLINTNEXTLINE(google-explicit-constructor): it is a point in time
  ConnectDeadline(Clock::time_point deadline, std::function<Status()> look = {})
      : deadline_(deadline), look_(std::move(look)), look_at_(look_ ? Clock::now() + interval_ : Clock::time_point::max()) {}

  [[nodiscard]] Clock::time_point deadline() const noexcept { return deadline_; }
  /// The deadline, or the earlier time at which check() is to be called.
  [[nodiscard]] Clock::time_point next() const noexcept { return std::min(deadline_, look_at_); }
  Status check() {
    if (Clock::now() < look_at_) return {};
    Status status = look_();
    interval_ = std::min(2 * interval_, kLongest);
    look_at_ = Clock::now() + interval_;
    return status;
  }

 private:
  static constexpr Clock::duration kLongest = std::chrono::milliseconds(250);

  Clock::time_point deadline_;
  std::function<Status()> look_;
  Clock::duration interval_ = std::chrono::milliseconds(100);
  Clock::time_point look_at_;
};

}  // namespace shoal
