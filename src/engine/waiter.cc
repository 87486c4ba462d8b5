#include "src/engine/waiter.h"

#include <sched.h>

#include <algorithm>

#include "src/engine/cpu_relax.h"

namespace shoal {

bool Waiter::look_again() noexcept {
  const auto now = Clock::now();
  if (!waiting_) {
    waiting_ = true;
    since_ = now;
  }
  const auto waited = now - since_;
  const auto pause = cores_to_spare_ ? pause_budget_ : std::chrono::nanoseconds(0);
  if (waited < pause) {
    cpu_relax();
    return true;
  }
  if (waited < pause + yield_budget_) {
    ::sched_yield();
    return true;
  }
  return false;
}

void Waiter::moved() noexcept {
  if (!waiting_) return;
  waiting_ = false;
  pause_budget_ = std::min(pause_budget_ * 2, kMaxPause);
  yield_budget_ = std::min(yield_budget_ * 2, kMaxYield);
}

void Waiter::blocking() noexcept {
  waiting_ = false;
  pause_budget_ = std::max(pause_budget_ / 2, kMinPause);
  yield_budget_ = std::max(yield_budget_ / 2, kMinYield);
}

}  // namespace shoal
