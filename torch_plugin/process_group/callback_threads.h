// Where callbacks of futures run that may wait for other calls.
#pragma once

#include <functional>

namespace shoal::torch {

/// Threads for callbacks that may wait, which in shoal's own thread would stop everything. PyTorch's communication hooks for
/// DDP chain such ones: PowerSGD and quantization wait for a second call in a callback of the first.
///
/// One thread a level, made when it is first needed and kept: callbacks run one after the other, in the order in which the
/// calls ended. A callback's own calls belong to the next level, so that what it waits for never stands behind it. Thread rule:
/// any thread may call.
class CallbackThreads {
 public:
  /// Runs `task` in the thread of `level` (from 1), after the earlier ones there.
  static void run(int level, std::function<void()> task);
  /// The level of the calling thread; 0 for every thread that is not one of these.
  [[nodiscard]] static int own_level() noexcept;
};

}  // namespace shoal::torch
