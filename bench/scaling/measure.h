// What the two programs of bench/scale measure alike: the resources of a process, and the time of repeated calls.
#pragma once

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::scaling {

using Clock = std::chrono::steady_clock;

inline constexpr int kCount = 256;  ///< float32 elements of an all_reduce: 1 KiB
inline constexpr int kBlocks = 9;
inline constexpr double kBlockSeconds = 0.1;  ///< about
inline constexpr int kMostCalls = 2000;       ///< of a block

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Processor time of this process, all threads, user and system.
inline double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

inline double descriptors() {
  return static_cast<double>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

inline double heap_bytes() { return static_cast<double>(::mallinfo2().uordblks); }

inline double address_space_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmSize:")) return 1024 * std::stod(line.substr(7));
  }
  return 0;
}

/// The figures of one rank. The largest of all ranks count.
struct Figures {
  enum Index { kCreateS, kDescriptors, kHeapBytes, kAddressSpaceBytes, kCpuUsOfCall, kSize };
  std::array<double, kSize> values{};
};

/// Times `call` in `blocks`. `largest(value)`: the largest value of all ranks; collective. Returns the median of the blocks,
/// microseconds of a call, and sets the processor time of a call of this rank.
template <typename Call, typename Largest>
double time_calls(int blocks, const Call& call, const Largest& largest, Figures& figures) {
  const auto block = [&](int calls) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return largest(seconds_since(start)) / calls;
  };
  block(3);
  const int calls = std::clamp(static_cast<int>(kBlockSeconds / block(10)), 10, kMostCalls);
  const double cpu_before = cpu_seconds();
  std::vector<double> times(static_cast<std::size_t>(blocks));
  for (double& time : times) time = block(calls);
  figures.values[Figures::kCpuUsOfCall] = 1e6 * (cpu_seconds() - cpu_before) / ((calls + 1) * blocks);
  std::ranges::sort(times);
  return 1e6 * times[times.size() / 2];
}

/// The number of blocks: the program's only argument, or kBlocks.
inline int blocks_of(int argc, char** argv) { return argc > 1 ? std::max(1, std::atoi(argv[1])) : kBlocks; }

/// One line of JSON on standard output.
inline void print_figures(int ranks, double all_reduce_us, const Figures& largest) {
  const nlohmann::json report{{"ranks", ranks},
                              {"all_reduce_us", all_reduce_us},
                              {"create_s", largest.values[Figures::kCreateS]},
                              {"descriptors", largest.values[Figures::kDescriptors]},
                              {"heap_bytes", largest.values[Figures::kHeapBytes]},
                              {"address_space_bytes", largest.values[Figures::kAddressSpaceBytes]},
                              {"cpu_us_of_call", largest.values[Figures::kCpuUsOfCall]}};
  std::puts(report.dump().c_str());
}

}  // namespace shoal::scaling
