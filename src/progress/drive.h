// The loop of the driver thread: poll, pause, sleep.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include <poll.h>
#include <time.h>

#include "src/progress/progress_engine.h"
#include "src/progress/waiter.h"

namespace shoal {

/// Descriptors that an engine waits for at most: its own, of its transports and of the control plane.
inline constexpr std::size_t kMaxWaitFds = 8;

/// Drives `engines` (the caller holds their driver locks) until `done()`, which is checked by `limit` at the latest.
/// `extra_fd` (or -1) is one more descriptor to wake up for. Allocates only where `descriptors` has to grow.
template <typename Done>
void drive(std::span<ProgressEngine* const> engines, Waiter& waiter, int extra_fd, std::vector<pollfd>& descriptors,
           std::chrono::steady_clock::time_point limit, Done done) {
  descriptors.reserve(1 + kMaxWaitFds * engines.size());  // now, not in the call that first has to sleep
  const auto for_all = [&](auto&& action) {
    bool any = false;
    for (ProgressEngine* engine : engines) any |= action(*engine);
    return any;
  };
  const auto progress = [&] { return for_all([](ProgressEngine& m) { return m.progress(); }); };
  while (!done()) {
    if (progress()) {
      waiter.moved();
      for_all([](ProgressEngine& m) { return m.check_if_overdue(); });
      continue;
    }
    if (done()) return;
    if (waiter.look_again()) continue;

    if (for_all([](ProgressEngine& m) { return m.check(); })) continue;
    waiter.blocking();
    descriptors.clear();  // empty: they have not been polled
    bool clear = true;
    for (ProgressEngine* engine : engines) clear &= engine->prepare_wait();
    const auto may_sleep = [&] { return std::ranges::all_of(engines, [](ProgressEngine* m) { return m->may_sleep(); }); };
    // One more pass after announcing the sleep: what arrived before the announcement woke no thread.
    if (clear && !progress() && !done() && may_sleep()) {
      if (extra_fd >= 0) descriptors.push_back({extra_fd, POLLIN, 0});
      auto until = std::min(limit, std::chrono::steady_clock::now() + std::chrono::seconds(1));
      for (ProgressEngine* engine : engines) {
        engine->append_wait_fds(descriptors);
        until = std::min(until, engine->next_check());
      }
      const auto now = std::chrono::steady_clock::now();
      const auto longest = waiter.longest_sleep();
      const bool measured = longest < until - now;
      const std::chrono::nanoseconds timeout = measured ? longest : until - now;
      if (timeout.count() > 0) {
        const timespec time{timeout.count() / 1'000'000'000, timeout.count() % 1'000'000'000};
        const int ready = ::ppoll(descriptors.data(), descriptors.size(), &time, nullptr);
        if (measured && ready == 0) waiter.slept(std::chrono::steady_clock::now() - now);
      }
    }
    for (ProgressEngine* engine : engines) engine->finish_wait(descriptors);
    waiter.woken();
  }
}

}  // namespace shoal
