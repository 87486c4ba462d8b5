// Recorder: what trace_begin() and trace_end() of <shoal/trace.h> switch on and off.
#pragma once

#include <atomic>
#include <chrono>

#include <shoal/trace.h>

namespace shoal {

/// Off, it costs one load and one branch for each tile. On, each thread writes to a queue of its own, without a lock.
/// Thread rule: any thread.
class Recorder {
 public:
  using Time = std::chrono::steady_clock::time_point;

  [[nodiscard]] static bool on() noexcept { return on_.load(std::memory_order_relaxed); }
  /// The time, where the Recorder is on; else a default value.
  [[nodiscard]] static Time now_if_on() noexcept { return on() ? std::chrono::steady_clock::now() : Time(); }
  /// Fills in the thread. Drops the event where the thread's queue is full.
  static void add(StageEvent event) noexcept;

  /// A number for a communicator; each call returns another one.
  static std::uint32_t next_number() noexcept { return numbers_.fetch_add(1, std::memory_order_relaxed); }

  static void begin();
  static std::vector<StageEvent> end();

 private:
  static inline std::atomic<bool> on_{false};
  static inline std::atomic<std::uint32_t> numbers_{0};
};

}  // namespace shoal
