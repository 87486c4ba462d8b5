// Waiter: how long to look again before sleeping. Spinning is for processes that have cores to spare.
#pragma once

#include <chrono>

namespace shoal {

/// Decides, after a look that found nothing, whether to look again at once, to let others run first, or to block.
///
/// With cores to spare it polls for a few microseconds; then, or without, it offers its core to whoever is ready for some tens;
/// then it blocks. Only its own time counts: what others make of the core while it is offered is not wasted, and where many
/// ranks share a core a sleep and a wake-up of each cost more than all their looks. All by the clock: a look costs from
/// nanoseconds (memory) to a microsecond (sockets).
///
/// Looking that pays doubles the next attempt; a wait that lasts long in spite of it halves the next, so waits on a slow wire
/// soon cost nothing. A wait that ends soon after the sleep has begun doubles it as well: two ranks that both sleep answer as
/// late as they wake up, so that no short look would ever pay again.
///
/// A sleep costs what the machine takes to wake a core: microseconds, or on a virtual machine whose host is busy nearly a
/// millisecond. Now and then a short sleep with a known end measures that, and where it is much, looking is worth as much (who
/// looks for as long as a sleep costs never loses more than twice the least). Only with cores to spare.
///
/// A yield that lasts for milliseconds has gone to somebody who computes, and the scheduler gives such a one a whole slice,
/// whereas it wakes a sleeper at once. So after that it blocks instead of yielding for a few waits, and for twice as many each
/// time that this happens again.
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
  /// The caller is about to block,
  void blocking() noexcept;
  /// at most for so long: mostly as long as it wants,
  std::chrono::nanoseconds longest_sleep() noexcept;
  /// (where it slept for so long instead, and nothing came)
  void slept(std::chrono::nanoseconds duration) noexcept;
  /// and has blocked.
  void woken() noexcept;
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
  /// Sleeps between two that measure what a sleep costs; how long those want to sleep; and what the kernel may add to that for
  /// company (timer slack).
  static constexpr int kSleepsBetweenMeasures = 16;
  static constexpr std::chrono::nanoseconds kMeasuredSleep{50'000};
  static constexpr std::chrono::nanoseconds kTimerSlack{50'000};
  static constexpr std::chrono::nanoseconds kMaxLook{1'000'000};
  /// Of the others, in a wait.
  static constexpr std::chrono::nanoseconds kLostSlice{2'000'000};
  static constexpr int kFewWaits = 4;     ///< without yields, after the first loss
  static constexpr int kManyWaits = 256;  ///< at most
  static constexpr int kForgets = 64;     ///< waits that yields have ended well

  void end_yield(Clock::time_point now) noexcept;
  void look_longer() noexcept;
  [[nodiscard]] std::chrono::nanoseconds max_yield() const noexcept;

  bool cores_to_spare_;
  bool yields_;
  bool waiting_ = false;
  bool yielding_ = false;
  int waits_without_yield_ = 0;
  int next_pause_of_yields_ = kFewWaits;
  int waits_since_loss_ = 0;  ///< that ended well by a yield
  Clock::time_point yielded_at_{};
  Clock::time_point since_{};
  std::chrono::nanoseconds others_{};  ///< of the time since then, what others have had
  std::chrono::nanoseconds pause_budget_ = kMaxPause;
  std::chrono::nanoseconds yield_budget_ = kMaxYield;
  std::chrono::nanoseconds sleep_cost_{};  ///< as measured lately
  int sleeps_ = 0;
  bool measured_ = false;  ///< the last sleep was short because it measured
};

}  // namespace shoal
