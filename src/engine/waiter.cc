#include "src/engine/waiter.h"

#include <sched.h>

#include <algorithm>

namespace shoal {
namespace {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

bool Waiter::look_again() noexcept {
  ++rounds_;
  const int pauses = cores_to_spare_ ? pause_budget_ : 0;
  if (rounds_ <= pauses) {
    cpu_relax();
    return true;
  }
  if (rounds_ <= pauses + yield_budget_) {
    ::sched_yield();
    return true;
  }
  return false;
}

void Waiter::moved() noexcept {
  if (rounds_ != 0) {
    pause_budget_ = std::min(pause_budget_ * 2, kMaxPauses);
    yield_budget_ = std::min(yield_budget_ * 2, kMaxYields);
  }
  rounds_ = 0;
}

void Waiter::blocking() noexcept {
  pause_budget_ = std::max(pause_budget_ / 2, kMinPauses);
  yield_budget_ = std::max(yield_budget_ / 2, kMinYields);
  rounds_ = 0;
}

}  // namespace shoal
