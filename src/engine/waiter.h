// Waiter: how long to look again before sleeping. Spinning is for processes that have cores to spare.
#pragma once

#include <chrono>

namespace shoal {

/// Decides, after a look that found nothing, whether to look again at once, to let others run first, or to block.
///
/// With cores to spare it polls for a few microseconds; then, or without, it offers its core to whoever is ready for some tens;
/// then it blocks. Only its own time counts: what others make of the core while it is offered is not wasted, and where many
/// ranks share a core a sleep and a wake-up of each cost more than all their looks. Looking again that ends in blocking all the
/// same halves the next attempt, looking that pays doubles it, so waits on a slow wire soon cost nothing. All by the clock: a
/// look costs from nanoseconds (memory) to a microsecond (sockets).
///
/// A yield that lasts for milliseconds has gone to somebody who computes, and the scheduler gives such a one a whole slice,
/// whereas it wakes a sleeper at once. So after that it blocks instead of yielding for many waits.
///
/// Thread rule: one thread.
class Waiter {
 public:
  /// `yields`: whether there is anything between polling and blocking. Not for a thread that works beside the callers and whom
  /// nobody waits for: each look again would cost those who compute.
  explicit Waiter(bool cores_to_spare, bool yields = true) noexcept : cores_to_spare_(cores_to_spare), yields_(yields) {}

  /// False: block now. True: a pause or a yield was spent; look again.
  bool look_again() noexcept;
  /// Something moved.
  void moved() noexcept;
  /// The caller is about to block.
  void blocking() noexcept;
  /// A yield lasted so long (looking again after it says so by itself).
  void yielded(std::chrono::nanoseconds duration) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::nanoseconds kMaxPause{2'000};
  static constexpr std::chrono::nanoseconds kMinPause{500};
  static constexpr std::chrono::nanoseconds kMaxYield{50'000};
  static constexpr std::chrono::nanoseconds kMinYield{2'000};

  /// Of a yield that nobody else wants.
  static constexpr std::chrono::nanoseconds kYieldCost{1'000};
  /// Of the others, in a wait.
  static constexpr std::chrono::nanoseconds kLostSlice{2'000'000};
  static constexpr int kWaitsWithoutYield = 200;

  void end_yield(Clock::time_point now) noexcept;

  bool cores_to_spare_;
  bool yields_;
  bool waiting_ = false;
  bool yielding_ = false;
  int waits_without_yield_ = 0;
  Clock::time_point yielded_at_{};
  Clock::time_point since_{};
  std::chrono::nanoseconds others_{};  ///< of the time since then, what others have had
  std::chrono::nanoseconds pause_budget_ = kMaxPause;
  std::chrono::nanoseconds yield_budget_ = kMaxYield;
};

}  // namespace shoal
