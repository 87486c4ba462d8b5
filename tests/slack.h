// Time limits in tests.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace shoal {

#ifdef SHOAL_SANITIZED
inline constexpr double kSlack = 5;  ///< factor on time limits
#else
inline constexpr double kSlack = 1;
#endif

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The entries of a folder of /proc whose names are numbers: processes, or threads. They may end meanwhile.
inline std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(folder.c_str()), ::closedir);
  if (directory == nullptr) return numbers;
  while (const dirent* entry = ::readdir(directory.get())) {
    if (const int number = std::atoi(entry->d_name); number > 0) numbers.push_back(number);
  }
  return numbers;
}

/// For every thread of a process (its folder in /proc): how long it has waited for a core in all, in ns, by its number.
inline std::map<int, std::int64_t> waits_for_core(const std::string& process) {
  std::map<int, std::int64_t> waits;
  for (const int thread : numbers_in(process + "/task")) {
    // The time on a core, then the time of waiting for one.
    std::ifstream file(process + "/task/" + std::to_string(thread) + "/schedstat");
    std::int64_t ran_ns = 0;
    std::int64_t waited_ns = 0;
    if (file >> ran_ns >> waited_ns) waits[thread] = waited_ns;
  }
  return waits;
}

/// The same for all processes that run this program.
inline std::map<int, std::int64_t> waits_for_core() {
  const auto program_of = [](const std::string& process) {
    std::array<char, 4096> path;
    const ssize_t length = ::readlink((process + "/exe").c_str(), path.data(), path.size());
    return std::string(path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  };
  const std::string own = program_of("/proc/self");
  std::map<int, std::int64_t> waits;
  for (const int process : numbers_in("/proc")) {
    const std::string folder = "/proc/" + std::to_string(process);
    if (program_of(folder) == own) waits.merge(waits_for_core(folder));
  }
  return waits;
}

/// Measures, from its construction on, for how long threads of this program, in all its processes, did not get a core: what the
/// kernel counts for the one that waited longest, or how much too late a thread wakes up, which also shows a machine that
/// shares its cores with others. Not across a fork(): it has a thread.
class CoreDelay {
 public:
  CoreDelay() : before_(waits_for_core()), thread_([this] { measure(); }) {}
  ~CoreDelay() {
    enough_.store(true);
    thread_.join();
  }
  CoreDelay(const CoreDelay&) = delete;
  CoreDelay& operator=(const CoreDelay&) = delete;

  [[nodiscard]] std::chrono::nanoseconds longest() const {
    std::int64_t longest_ns = latest_ns_.load();
    for (const auto& [thread, waited_ns] : waits_for_core()) {
      const auto before = before_.find(thread);
      longest_ns = std::max(longest_ns, waited_ns - (before == before_.end() ? 0 : before->second));
    }
    return std::chrono::nanoseconds(longest_ns);
  }
  /// By how much a time limit may be exceeded.
  [[nodiscard]] double allowance_s() const { return kTurns * std::chrono::duration<double>(longest()).count(); }

  /// Until all ranks know of an error, so many threads of the job may need a core, one after the other.
  static constexpr int kTurns = 5;

 private:
  static constexpr std::chrono::milliseconds kNap{2};

  void measure() {
    while (!enough_.load()) {
      const auto before = std::chrono::steady_clock::now();
      std::this_thread::sleep_for(kNap);
      const std::chrono::nanoseconds late = std::chrono::steady_clock::now() - before - kNap;
      latest_ns_.store(std::max<std::int64_t>(latest_ns_.load(), late.count()));
    }
  }

  const std::map<int, std::int64_t> before_;
  std::atomic<bool> enough_{false};
  std::atomic<std::int64_t> latest_ns_{0};
  std::thread thread_;  // last: it uses the other members
};

/// A clock for time limits that is fair to a busy machine: seconds since its construction, less CoreDelay's allowance.
class FairClock {
 public:
  [[nodiscard]] double seconds() const {
    const double real = real_seconds();  // first: the allowance takes time
    return std::max(0.0, real - delay_.allowance_s());
  }
  [[nodiscard]] double real_seconds() const { return seconds_since(start_); }

 private:
  const CoreDelay delay_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace shoal
