// Events: descriptors that one thread makes readable to wake another one that sleeps in poll or epoll. Linux's eventfd.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "src/base/descriptor.h"

namespace shoal {

/// Not valid if the process or the system has no descriptor left; errno distinguishes the two.
inline Descriptor make_event() noexcept { return Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

/// Makes `event` readable until drain_event(). Any thread.
inline void ring_event(int event) noexcept {
  const std::uint64_t one = 1;
  // Any other error means that the counter is full, and then the event is readable already.
  while (::write(event, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

inline void drain_event(int event) noexcept {
  std::uint64_t count = 0;
  while (::read(event, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

}  // namespace shoal
