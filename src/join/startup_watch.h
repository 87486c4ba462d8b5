// The line on standard error that says what a start-up waits for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace shoal {

/// While this exists, the thread that made it starts a communicator. Where that takes longer than SHOAL_WARN_AFTER, a thread
/// writes what the start waits for, and again each time that the wait has doubled. A thread of its own, because the start may
/// wait in system calls that have no timeout, such as name resolution. It writes nothing where no thread can be started, or
/// where SHOAL_WARN_AFTER is invalid: the start reports that.
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
  std::thread thread_;  // last: starts when everything else is there
};

/// What the start of this thread waits for from now on: "rank 3 (step 'node')". Nothing where this thread starts none.
void startup_waits_for(std::string what);

/// While this exists, the watch of this thread asks `absent` for the ranks that have not joined. Called in another thread.
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
