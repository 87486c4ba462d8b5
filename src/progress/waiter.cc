#include "src/progress/waiter.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "src/base/cpu_relax.h"

namespace shoal {

Waiter::Next Waiter::next(Clock::time_point now) noexcept {
  end_yield(now);
  if (policy_ == WaitPolicy::block) return Next::block;
  if (!waiting_) {
    waiting_ = true;
    since_ = now;
    others_ = {};
  }
  if (never_sleeps()) {
    if (now - since_ >= kSleeplessRound) return Next::block;
    return policy_ == WaitPolicy::spin ? Next::poll : Next::yield;
  }
  const auto waited = now - since_ - others_;
  const auto pause = cores_to_spare_ ? pause_budget_ : std::chrono::nanoseconds(0);
  if (waited < pause) return Next::poll;
  if (yields_ && waits_without_yield_ == 0 && others_ < lost_slice_ && waited < pause + yield_budget_) {
    yielding_ = true;
    yielded_at_ = now;
    return Next::yield;
  }
  return Next::block;
}

bool Waiter::look_again() noexcept {
  const Next next_step = next(Clock::now());
  if (next_step == Next::poll) cpu_relax();
  if (next_step == Next::yield) ::sched_yield();
  return next_step != Next::block;
}

void Waiter::moved() noexcept {
  if (waiting_) moved(yielding_ ? Clock::now() : since_);
}

void Waiter::moved(Clock::time_point now) noexcept {
  if (!waiting_) return;
  if (yielding_) {
    end_yield(now);
    if (++waits_since_loss_ >= kForgets) next_pause_of_yields_ = kFewWaits;
  }
  waiting_ = false;
  look_longer();
}

void Waiter::blocking() noexcept {
  waiting_ = false;
  if (waits_without_yield_ > 0) --waits_without_yield_;
}

std::chrono::nanoseconds Waiter::longest_sleep() noexcept {
  if (never_sleeps()) return std::chrono::nanoseconds(0);
  const bool measures =
      policy_ == WaitPolicy::automatic && cores_to_spare_ && yields_ && ++sleeps_ % kSleepsBetweenMeasures == 0;
  return measures ? kMeasuredSleep : std::chrono::nanoseconds::max();
}

void Waiter::slept(std::chrono::nanoseconds duration) noexcept {
  measured_ = true;
  const auto cost = std::max(duration - kMeasuredSleep - kTimerSlack, std::chrono::nanoseconds(0));
  sleep_cost_ += (cost - sleep_cost_) / 4;
}

std::chrono::nanoseconds Waiter::max_yield() const noexcept { return std::max(kMaxYield, std::min(2 * sleep_cost_, kMaxLook)); }

void Waiter::woken(Clock::time_point now) noexcept {
  if (std::exchange(measured_, false)) return;
  // A longer poll would have saved most of the sleep.
  if (now - since_ <= 2 * max_yield()) {
    look_longer();
  } else {
    pause_budget_ = std::max(pause_budget_ / 2, kMinPause);
    yield_budget_ = std::max(yield_budget_ / 2, kMinYield);
  }
}

void Waiter::look_longer() noexcept {
  pause_budget_ = std::min(pause_budget_ * 2, kMaxPause);
  yield_budget_ = std::min(yield_budget_ * 2, max_yield());
}

void Waiter::yielded(std::chrono::nanoseconds duration) noexcept {
  others_ += std::max(duration - kYieldCost, std::chrono::nanoseconds(0));
  if (duration < lost_slice_) return;
  waits_without_yield_ = std::exchange(next_pause_of_yields_, std::min(next_pause_of_yields_ * 2, kManyWaits));
  waits_since_loss_ = 0;
}

void Waiter::end_yield(Clock::time_point now) noexcept {
  if (std::exchange(yielding_, false)) yielded(now - yielded_at_);
}

}  // namespace shoal
