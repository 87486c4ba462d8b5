// Waiter: how long to poll again before sleeping. Spinning is for processes that have cores to spare.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace shoal {

/// What a thread does while its call waits for other ranks (SHOAL_WAIT).
enum class WaitPolicy : std::uint8_t {
  automatic,  ///< by what polls and sleeps cost and by the cores: see Waiter
  spin,       ///< polls, and never gives its core away
  yield,      ///< yields to other threads that are ready, and never sleeps
  block,      ///< sleeps at once
};

/// Decides, after a poll that found nothing, whether to poll again at once, to yield, or to block.
///
/// With cores to spare it polls for a few microseconds; then, or without spare cores, it yields for some tens of microseconds;
/// then it blocks. Only its own time counts: what other threads do with the core during a yield is not wasted, and where many
/// ranks share a core, a sleep and a wake-up of each cost more than all their polls. All limits are times, since a poll costs
/// from nanoseconds (memory) to a microsecond (sockets).
///
/// A wait that ends while polling doubles the time to poll in the next one. A wait that lasts much longer halves it, so waits
/// on a slow wire soon cost nothing. A wait that ends soon after the sleep has begun doubles it as well: two ranks that both
/// sleep answer as late as they wake up, so no short poll would ever succeed again.
///
/// A sleep costs what the machine takes to wake a core: microseconds, or on a virtual machine whose host is busy nearly a
/// millisecond. Now and then a short sleep with a known end measures that cost. Where it is high, polling may take as long
/// (polling for as long as a sleep costs never loses more than twice the optimum). Only with cores to spare.
///
/// A yield that lasts for milliseconds has gone to a thread that computes. The scheduler gives such a thread a whole slice,
/// whereas it wakes a sleeping thread at once. So after that the Waiter blocks instead of yielding for a few waits, and for
/// twice as many each time that this happens again. Where many ranks share a core, so long a yield is an ordinary round of
/// their polls: the limit grows with their number. A sleep would cost more, and make all others' rounds longer.
///
/// With WaitPolicy::spin and yield a wait never sleeps: it interrupts its polls every millisecond with a sleep of no duration,
/// around which the caller looks for failed peers and missed deadlines.
///
/// Each function that needs the time has a form that takes it: the decisions are a function of what it is told.
///
/// Thread rule: one thread.
class Waiter {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Next { poll, yield, block };

  /// `yields`: whether to yield between polling and blocking. Not for the progress thread, which no caller waits for: each
  /// further poll would take time from threads that compute.
  /// `ranks_per_core`: of this host, rounded up.
  explicit Waiter(bool cores_to_spare, bool yields = true, WaitPolicy policy = WaitPolicy::automatic,
                  int ranks_per_core = 1) noexcept
      : cores_to_spare_(cores_to_spare),
        yields_(yields),
        policy_(policy),
        lost_slice_(std::max<std::chrono::nanoseconds>(kLostSlice, ranks_per_core * kRoundOfARank)) {}

  /// What to do after a poll that found nothing.
  Next next(Clock::time_point now) noexcept;
  /// Does it. False: block now. True: a pause or a yield was spent; poll again.
  bool look_again() noexcept;
  /// Data moved: the wait has ended.
  void moved() noexcept;
  void moved(Clock::time_point now) noexcept;
  /// To be called before blocking.
  void blocking() noexcept;
  /// The longest time to block, mostly without a limit; a short one measures what a sleep costs; zero: do not block.
  std::chrono::nanoseconds longest_sleep() noexcept;
  /// To be called where a limited sleep ended by its timeout, after `duration`.
  void slept(std::chrono::nanoseconds duration) noexcept;
  /// To be called after blocking.
  void woken() noexcept { woken(Clock::now()); }
  void woken(Clock::time_point now) noexcept;
  /// A yield lasted for `duration`; next() calls this for the yields that it asked for.
  void yielded(std::chrono::nanoseconds duration) noexcept;

 private:
  static constexpr std::chrono::nanoseconds kMaxPause{2'000};
  static constexpr std::chrono::nanoseconds kMinPause{500};
  static constexpr std::chrono::nanoseconds kMaxYield{50'000};
  static constexpr std::chrono::nanoseconds kMinYield{2'000};
  /// Between two sleeps of no duration.
  static constexpr std::chrono::nanoseconds kSleeplessRound{1'000'000};

  /// Cost of a yield when no other thread is ready.
  static constexpr std::chrono::nanoseconds kYieldCost{1'000};
  /// Sleeps between two measuring ones; how long those are to last; and what the kernel may add to that to end timers together
  /// (timer slack).
  static constexpr int kSleepsBetweenMeasures = 16;
  static constexpr std::chrono::nanoseconds kMeasuredSleep{50'000};
  static constexpr std::chrono::nanoseconds kTimerSlack{50'000};
  static constexpr std::chrono::nanoseconds kMaxLook{1'000'000};
  /// Time that other threads take in one wait before it stops yielding; and for each rank that shares the core.
  static constexpr std::chrono::nanoseconds kLostSlice{2'000'000};
  static constexpr std::chrono::nanoseconds kRoundOfARank{500'000};
  static constexpr int kFewWaits = 4;     ///< without yields, after the first loss
  static constexpr int kManyWaits = 256;  ///< without yields, at most
  static constexpr int kForgets = 64;     ///< waits ended by a yield until the losses are forgotten

  void end_yield(Clock::time_point now) noexcept;
  void look_longer() noexcept;
  [[nodiscard]] std::chrono::nanoseconds max_yield() const noexcept;
  [[nodiscard]] bool never_sleeps() const noexcept { return policy_ == WaitPolicy::spin || policy_ == WaitPolicy::yield; }

  bool cores_to_spare_;
  bool yields_;
  WaitPolicy policy_;
  std::chrono::nanoseconds lost_slice_;
  bool waiting_ = false;
  bool yielding_ = false;
  int waits_without_yield_ = 0;
  int next_pause_of_yields_ = kFewWaits;
  int waits_since_loss_ = 0;  ///< waits that ended by a yield
  Clock::time_point yielded_at_{};
  Clock::time_point since_{};
  std::chrono::nanoseconds others_{};  ///< of the time since then, that of other threads
  std::chrono::nanoseconds pause_budget_ = kMaxPause;
  std::chrono::nanoseconds yield_budget_ = kMaxYield;
  std::chrono::nanoseconds sleep_cost_{};  ///< as measured lately
  int sleeps_ = 0;
  bool measured_ = false;  ///< the last sleep was short, to measure
};

}  // namespace shoal
