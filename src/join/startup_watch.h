// The line on standard error that names what a start-up waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace shoal {

/// Exists while the thread that made it starts a communicator. If that takes longer than SHOAL_WARN_AFTER, a watch thread
/// prints what the start-up waits for, and again each time the wait has doubled. It is a separate thread because the start-up
/// may wait in system calls that have no timeout, such as name resolution. It prints nothing where no thread can be started,
/// or where SHOAL_WARN_AFTER is invalid, which the start-up reports.
class StartupWatch {
 public:
  StartupWatch(int rank, int size);
  ~StartupWatch();
  StartupWatch(const StartupWatch&) = delete;
  StartupWatch& operator=(const StartupWatch&) = delete;

 private:
  friend class AbsentRanks;
  friend void startup_waits_for(std::string what);
  void watch();

  const int rank_;
  const int size_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::milliseconds warn_after_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string what_;
  std::function<std::vector<int>()> absent_;
  std::thread thread_;  // last, because the thread uses all other members
};

/// Sets what the start-up in this thread waits for: "rank 3 (step 'node')". Does nothing if there is none in this thread.
void startup_waits_for(std::string what);

/// While this exists, the watch of this thread calls `absent`, in another thread, for the ranks that have not joined.
class AbsentRanks {
 public:
  explicit AbsentRanks(std::function<std::vector<int>()> absent);
  ~AbsentRanks();
  AbsentRanks(const AbsentRanks&) = delete;
  AbsentRanks& operator=(const AbsentRanks&) = delete;

 private:
  StartupWatch* watch_;
};

}  // namespace shoal
