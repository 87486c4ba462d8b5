// Time limits in tests.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace shoal {

#ifdef SHOAL_SANITIZED
inline constexpr double kSlack = 5;  ///< factor on time limits
#else
inline constexpr double kSlack = 1;
#endif

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Measures, from its construction on, the longest time for which a thread of this process had to wait for a core: how much too
/// late a thread wakes up. Not across a fork(): it has a thread.
class CoreDelay {
 public:
  CoreDelay() : thread_([this] { measure(); }) {}
  ~CoreDelay() {
    enough_.store(true);
    thread_.join();
  }
  CoreDelay(const CoreDelay&) = delete;
  CoreDelay& operator=(const CoreDelay&) = delete;

  [[nodiscard]] std::chrono::nanoseconds longest() const { return std::chrono::nanoseconds(longest_ns_.load()); }
  /// By how much a time limit may be exceeded: until all ranks know of an error, so many threads of the job may need a core,
  /// one after the other.
  [[nodiscard]] double allowance_s() const { return kTurns * std::chrono::duration<double>(longest()).count(); }

 private:
  static constexpr int kTurns = 5;
  static constexpr std::chrono::milliseconds kNap{2};

  void measure() {
    while (!enough_.load()) {
      const auto before = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(kNap);
      const std::chrono::nanoseconds late = std::chrono::steady_clock::now() - before - kNap;
      longest_ns_.store(std::max<std::int64_t>(longest_ns_.load(), late.count()));
    }
  }

  std::atomic<bool> enough_{false};
  std::atomic<std::int64_t> longest_ns_{0};
  std::thread thread_;  // last: it uses the other members
};

/// A clock for time limits that is fair to a busy machine: seconds since its construction, less CoreDelay's allowance.
class FairClock {
 public:
  [[nodiscard]] double seconds() const { return std::max(0.0, real_seconds() - delay_.allowance_s()); }
  [[nodiscard]] double real_seconds() const { return seconds_since(start_); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const CoreDelay delay_;
};

}  // namespace shoal
