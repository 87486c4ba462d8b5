// Threads for callbacks of futures that may wait for other calls.
#pragma once

#include <functional>

namespace shoal::torch {

/// Threads for callbacks that may wait; a callback that waits in shoal's own thread would stop all calls. PyTorch's
/// communication hooks for DDP chain such callbacks: PowerSGD and quantization wait for a second call in a callback of the
/// first.
///
/// One thread per level, made when first needed and kept: callbacks run one after the other, in the order in which the calls
/// ended. The calls that a callback makes belong to the next level, so the calls that it waits for are never queued behind
/// it. Thread rule: any thread may call.
class CallbackThreads {
 public:
  /// Runs `task` in the thread of `level` (from 1), after the earlier ones there.
  static void run(int level, std::function<void()> task);
  /// The level of the calling thread; 0 for all other threads.
  [[nodiscard]] static int own_level() noexcept;
};

}  // namespace shoal::torch
