// A system for simulations: a clock and descriptors that are the test's, in place of the kernel's, for one thread.
//
// Whoever links simulation_system.cc has its functions in front of those of the C library: clock_gettime, eventfd, timerfd,
// epoll, poll, read, write, close, and waiting for a condition. Outside of a Simulated they are the usual ones.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace shoal::testing {

using SimulatedClock = std::chrono::steady_clock;

/// While it lives, the steady clock goes on where it is told to, and a little with each look at it, and new descriptors are
/// virtual. One at a time; only the thread that made it may use the clock and descriptors meanwhile.
class Simulated {
 public:
  /// Every simulation starts at the same time.
  static constexpr SimulatedClock::time_point kStart{std::chrono::seconds(1000)};

  /// `seed`: for what is said where nothing can go on.
  explicit Simulated(std::uint64_t seed);
  Simulated(const Simulated&) = delete;
  Simulated& operator=(const Simulated&) = delete;
  ~Simulated();

  [[nodiscard]] static SimulatedClock::time_point now() noexcept;
  static void pass(std::chrono::nanoseconds time) noexcept;
  /// Does not go back.
  static void pass_until(SimulatedClock::time_point time) noexcept;
  static void go_back_to(SimulatedClock::time_point time) noexcept;

  /// What poll() would say of `fd` now.
  [[nodiscard]] static bool is_readable(int fd);
  /// When a timer behind `fd` makes it readable; nothing where none is armed.
  [[nodiscard]] static std::optional<SimulatedClock::time_point> due(int fd);
  /// Descriptors that have not been closed.
  [[nodiscard]] static std::size_t open_descriptors() noexcept;

  /// Does what others would do meanwhile, where the thread waits for a condition variable. Empty: it would wait for ever.
  static void set_meanwhile(std::function<void()> meanwhile);

  /// What comes is `what`, the `number`-th. Whoever waits in a loop for a time that does not come looks at the clock without
  /// end: beyond a million looks the process ends, with the seed and these words on standard error.
  static void start_step(const char* what, unsigned long long number) noexcept;
};

}  // namespace shoal::testing
