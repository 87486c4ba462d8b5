// A simulated clock and simulated descriptors, in place of the kernel's, for one thread.
//
// simulation_system.cc interposes functions of the C library: clock_gettime, eventfd, timerfd, epoll, poll, read, write, close,
// and waiting for a condition variable. While no Simulated exists they call the kernel.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace shoal::testing {

using SimulatedClock = std::chrono::steady_clock;

/// While it exists, the steady clock advances only by pass() and by a little at each read, and new descriptors are virtual. One
/// at a time; only the thread that made it may use the clock and descriptors meanwhile.
class Simulated {
 public:
  /// Every simulation starts at the same time.
  static constexpr SimulatedClock::time_point kStart{std::chrono::seconds(1000)};

  /// `seed`: for the message if the simulation cannot continue.
  explicit Simulated(std::uint64_t seed);
  Simulated(const Simulated&) = delete;
  Simulated& operator=(const Simulated&) = delete;
  ~Simulated();

  [[nodiscard]] static SimulatedClock::time_point now() noexcept;
  static void pass(std::chrono::nanoseconds time) noexcept;
  /// Never moves the clock back.
  static void pass_until(SimulatedClock::time_point time) noexcept;
  static void go_back_to(SimulatedClock::time_point time) noexcept;

  /// Whether poll() would report `fd` as readable now.
  [[nodiscard]] static bool is_readable(int fd);
  /// When a timer behind `fd` makes it readable; nothing where none is armed.
  [[nodiscard]] static std::optional<SimulatedClock::time_point> due(int fd);
  /// Descriptors that have not been closed.
  [[nodiscard]] static std::size_t open_descriptors() noexcept;

  /// `meanwhile` is called where the thread waits for a condition variable. Empty: such a wait ends the process.
  static void set_meanwhile(std::function<void()> meanwhile);

  /// Begins the `number`-th step `what`. A step that reads the clock more than a million times, in an endless loop, ends the
  /// process with the seed and these arguments on standard error.
  static void start_step(const char* what, unsigned long long number) noexcept;
};

}  // namespace shoal::testing
