// DriverGate: which thread drives a ProgressEngine, and how other threads wake it.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>
#include <vector>

#include "src/base/descriptor.h"
#include "src/base/event.h"

namespace shoal {

/// Whether poll found `fd` readable, or was not called (`polled` is empty). A descriptor that was not polled counts as not
/// readable.
inline bool is_readable(std::span<const pollfd> polled, int fd) {
  const auto found = std::ranges::find(polled, fd, &pollfd::fd);
  return found == polled.end() ? polled.empty() : found->revents != 0;
}

/// The state of a driver lock, which only DriverLock takes and gives back, and of its holder's sleep. Thread rule: any thread;
/// announce_sleep() and end_sleep() by the holder.
class DriverGate {
 public:
  DriverGate() : event_(make_event()) {}

  bool try_enter() noexcept { return !driven_.exchange(true, std::memory_order_seq_cst); }
  /// Waits until it can enter; wakes the driver, which makes way.
  void enter() noexcept {
    if (try_enter()) return;
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    while (!try_enter()) {
      wake();
      std::this_thread::yield();
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void leave() noexcept { driven_.store(false, std::memory_order_seq_cst); }
  [[nodiscard]] bool is_driven() const noexcept { return driven_.load(std::memory_order_seq_cst); }
  /// Another thread waits to enter.
  [[nodiscard]] bool is_wanted(std::memory_order order = std::memory_order_relaxed) const noexcept {
    return waiting_.load(order) != 0;
  }

  /// There is a descriptor by which the driver can be woken.
  [[nodiscard]] bool can_wake() const noexcept { return event_.valid(); }
  void wake() noexcept {
    if (sleeps_.exchange(false, std::memory_order_seq_cst)) ring_event(event_.get());
  }
  void announce_sleep() noexcept { sleeps_.store(true, std::memory_order_seq_cst); }
  void end_sleep(std::span<const pollfd> polled) noexcept {
    sleeps_.store(false, std::memory_order_relaxed);
    if (is_readable(polled, event_.get())) drain_event(event_.get());
  }
  void append_wait_fd(std::vector<pollfd>& out) const { out.push_back({event_.get(), POLLIN, 0}); }

 private:
  std::atomic<bool> driven_{false};
  std::atomic<int> waiting_{0};
  std::atomic<bool> sleeps_{false};
  Descriptor event_;
};

}  // namespace shoal
