// Processor time of a communicator that is idle or waits, with each value of SHOAL_WAIT.
#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::expect_ranks;

constexpr double kMaxShareOfCore = 0.001 * kSlack;  // a program that does nothing uses 0.0006 under ThreadSanitizer
constexpr double kIdle_s = 3;
constexpr double kLate_s = 0.5;

/// CPU time of this process, all threads, user and system.
double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// For how long the calling thread could have used a core and did not get one.
double waited_for_core_seconds() {
  double used_ns = 0;
  double waited_ns = 0;
  std::ifstream("/proc/thread-self/schedstat") >> used_ns >> waited_ns;
  return 1e-9 * waited_ns;
}

class Idle : public ::testing::TestWithParam<const char*> {};

TEST_P(Idle, CommunicatorUsesNoProcessorTime) {
  CommunicatorOptions options;
  options.transports = GetParam();
  expect_ranks(2, options, [](Communicator& c) -> std::string {
    std::array<float, 1024> first{};
    std::array<float, 1024> second{};
    for (int i = 0; i < 100; ++i) {
      const Status status = c.all_reduce(first.data(), first.data(), first.size(), DataType::float32, ReduceOp::sum);
      if (!status.ok()) return status.to_string();
    }
    for (int i = 0; i < 100; ++i) {
      auto one = c.all_reduce_async(first.data(), first.data(), first.size(), DataType::float32, ReduceOp::sum);
      if (!one.ok()) return one.status().to_string();
      auto other = c.all_reduce_async(second.data(), second.data(), second.size(), DataType::float32, ReduceOp::sum);
      if (!other.ok()) return other.status().to_string();
      // The progress thread drives the first call.
      if (Status status = other->wait(); !status.ok()) return status.to_string();
      if (Status status = one->wait(); !status.ok()) return status.to_string();
    }
    // The end of a rank costs its peers time, so barriers keep both ranks alive during the measurement.
    if (Status status = c.barrier(); !status.ok()) return status.to_string();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const double before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::duration<double>(kIdle_s));
    const double share =
        (cpu_seconds() - before) / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (Status status = c.barrier(); !status.ok()) return status.to_string();
    fmt::print("{} ranks, rank {}: {:.4f} % of a core\n", c.size(), c.rank(), 100 * share);
    std::fflush(stdout);
    if (share < kMaxShareOfCore) return {};
    return fmt::format("an idle communicator uses {:.3f} % of a core", 100 * share);
  });
}

// A rank sleeps while it waits in one call, although data for another call is on its links.
TEST_P(Idle, WaitWithUnreadMessageUsesNoProcessorTime) {
  CommunicatorOptions options;
  options.transports = GetParam();
  expect_ranks(2, options, [](Communicator& c) -> std::string {
    std::array<float, 100> data{};
    const auto all_reduce = [&] {
      return c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum);
    };
    if (Status status = all_reduce(); !status.ok()) return status.to_string();
    if (c.rank() == 1) {
      auto message = c.send_async(data.data(), data.size(), DataType::float32, 0);
      if (!message.ok()) return message.status().to_string();
      std::this_thread::sleep_for(std::chrono::duration<double>(kLate_s));
      if (Status status = all_reduce(); !status.ok()) return status.to_string();
      return message->wait().ok() ? "" : "the message was not sent";
    }
    const double before = cpu_seconds();
    if (Status status = all_reduce(); !status.ok()) return status.to_string();
    const double used = cpu_seconds() - before;
    if (Status status = c.recv(data.data(), data.size(), DataType::float32, 1); !status.ok()) return status.to_string();
    return used < kLate_s / 10 ? "" : fmt::format("{:.3f} s of CPU to wait for {} s", used, kLate_s);
  });
}

// A thread that spins or yields uses a core or, beside other programs, waits for one.
TEST_P(Idle, SettingDecidesWhetherAWaitUsesProcessorTime) {
  CommunicatorOptions options;
  options.transports = GetParam();
  for (const std::string policy : {"auto", "spin", "yield", "block"}) {
    ::setenv("SHOAL_WAIT", policy.c_str(), 1);
    expect_ranks(2, options, [&](Communicator& c) -> std::string {
      float sum = 0;
      for (int call = 0; call < 100; ++call) {
        const float own = static_cast<float>(call + c.rank());
        if (Status status = c.all_reduce(&own, &sum, 1, DataType::float32, ReduceOp::sum); !status.ok())
          return status.to_string();
        if (sum != static_cast<float>(2 * call + 1)) return fmt::format("{}: call {} gives {}", policy, call, sum);
      }
      if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(kLate_s));
      const double before = cpu_seconds();
      const double waited_before = waited_for_core_seconds();
      if (Status status = c.barrier(); !status.ok()) return status.to_string();
      const double used = cpu_seconds() - before;
      const double wanted = used + waited_for_core_seconds() - waited_before;
      if (Status status = c.barrier(); !status.ok()) return status.to_string();
      if (c.rank() == 1) return {};
      const bool sleeps = policy == "auto" || policy == "block";
      if (sleeps ? used < kLate_s / 10 : wanted > kLate_s / 2) return {};
      return fmt::format("{}: {:.3f} s of CPU, {:.3f} s with those without a core, to wait for {} s", policy, used, wanted,
                         kLate_s);
    });
  }
  ::setenv("SHOAL_WAIT", "politely", 1);
  testing::expect_all_well(testing::run_ranks(1, [](int rank, int size, const std::string& directory) -> std::string {
    const Status status = testing::join(directory, rank, size, {}).status();
    const bool refused =
        status.code() == StatusCode::invalid_argument && status.message().find("SHOAL_WAIT") != std::string::npos;
    return refused ? "" : "it was accepted: " + status.to_string();
  }));
  ::unsetenv("SHOAL_WAIT");
}

INSTANTIATE_TEST_SUITE_P(, Idle, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal
