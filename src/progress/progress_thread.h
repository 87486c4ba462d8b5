// ProgressThread: the process's progress thread; drives the calls that no caller drives.
#pragma once

#include <poll.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/descriptor.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_engine.h"

namespace shoal {

/// One per process, started by the first asynchronous call, shared by all communicators and all rails, pinned
/// where there are cores to spare. Sleeps while nothing is in flight.
/// Thread rule: any thread.
class ProgressThread {
 public:
  static ProgressThread& instance();

  /// How the thread runs.
  struct Place {
    std::vector<int> cores;    ///< that it may run on; any where empty (see placing.h)
    bool spare_cores = false;  ///< it may spin a little
    int nice = 0;              ///< its nice value (SHOAL_PROGRESS_NICE); 0: that of the process
  };
  /// The first communicators of the process place the thread, which starts with the first call that needs it. system_error
  /// where there is no file descriptor to wake it by.
  Status add(const std::shared_ptr<ProgressEngine>& engine, const Place& place);
  /// Returns when the thread no longer touches `engine`.
  void remove(ProgressEngine* engine);
  /// `engine` has calls that need driving. system_error where the thread cannot be started.
  Status notify(ProgressEngine* engine);

  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

 private:
  ProgressThread();
  ~ProgressThread();
  void loop();
  void wake() noexcept;

  std::mutex mutex_;  // guards the list and the start of the thread; not taken by notify once the thread runs
  std::vector<std::shared_ptr<ProgressEngine>> engines_;
  std::atomic<std::uint64_t> generation_{0};       // incremented by add and remove
  std::atomic<std::uint64_t> seen_generation_{0};  // the one that the loop works with
  std::atomic<bool> news_{false};                  // some engine wants the thread
  std::atomic<bool> sleeps_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> started_{false};
  Place place_;
  Descriptor wake_event_;
  // The loop's own state. Members, so that a forked child, in which the loop's stack is gone, still refers to their memory.
  std::vector<std::shared_ptr<ProgressEngine>> known_;
  std::vector<ProgressEngine*> driven_;
  std::vector<DriverLock> locks_;  // of driven_
  std::vector<pollfd> descriptors_;
  std::thread thread_;
};

}  // namespace shoal
