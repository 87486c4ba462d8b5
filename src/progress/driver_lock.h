// DriverLock: the right to drive a ProgressEngine, which one thread at a time has.
#pragma once

#include <mutex>
#include <utility>

#include "src/progress/progress_engine.h"

namespace shoal {

/// Owns the engine's driver lock, or nothing. A value that moves; the thread that took the lock gives it back. A holder gives
/// it back soon, even with calls unfinished.
class [[nodiscard]] DriverLock {
 public:
  DriverLock() noexcept = default;
  /// Waits for the lock. Not in a callback of an Operation: that thread holds it already.
  explicit DriverLock(ProgressEngine& engine) : engine_(&engine) { engine.gate_.enter(); }
  /// Owns nothing where another thread drives.
  DriverLock(ProgressEngine& engine, std::try_to_lock_t) : engine_(engine.gate_.try_enter() ? &engine : nullptr) {}
  DriverLock(DriverLock&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)) {}
  DriverLock& operator=(DriverLock&& other) noexcept {
    unlock();
    engine_ = std::exchange(other.engine_, nullptr);
    return *this;
  }
  ~DriverLock() { unlock(); }

  [[nodiscard]] bool owns() const noexcept { return engine_ != nullptr; }
  /// Gives the lock back, and makes sure that calls in flight are still driven.
  void unlock() {
    if (engine_ != nullptr) give_back(*std::exchange(engine_, nullptr));
  }

 private:
  static void give_back(ProgressEngine& engine);

  ProgressEngine* engine_ = nullptr;
};

}  // namespace shoal
