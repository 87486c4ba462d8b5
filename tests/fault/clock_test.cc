// A wall clock that jumps by hours at every read moves no deadline, and the library never waits until a wall-clock time.
//
// The test interposes the functions that read the clock. A seccomp filter kills a rank that waits until a wall-clock time,
// because that wait would use the kernel's real clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/store.h>

#include "tests/fault/clauses.h"
#include "tests/fault/fault_report.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace {

std::atomic<bool> jumping{false};
std::atomic<unsigned> looks{0};

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if ((clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && jumping.load())
    time->tv_sec += looks.fetch_add(1) % 2 == 0 ? 7200 : -7200;
  return result;
}
int gettimeofday(timeval* time, void*) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}
time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kNotPermitted = "may not filter system calls";

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
#else
constexpr std::uint32_t kMachine = 0;
#endif

/// A condition on the lower 32 bits of an argument of a system call: enough for flags and clocks, and to tell an address from
/// null.
struct Condition {
  enum class Kind { equal, has, not_zero };
  std::uint32_t argument = 0;
  Kind kind = Kind::equal;
  std::uint32_t value = 0;
};
using Kind = Condition::Kind;

/// From now on the kernel kills this process if it waits until a wall-clock time. Waiting for a duration is allowed, whatever
/// the clock: a jump does not change it.
bool forbid_the_wall_clock() {
  const std::vector<std::pair<std::uint32_t, std::vector<Condition>>> rules{
      {SYS_futex, {{1, Kind::has, FUTEX_CLOCK_REALTIME}, {3, Kind::not_zero, 0}}},  // without a time the flag has no effect
      {SYS_clock_nanosleep, {{0, Kind::equal, CLOCK_REALTIME}, {1, Kind::has, TIMER_ABSTIME}}},
      {SYS_timerfd_create, {{0, Kind::equal, CLOCK_REALTIME}}},
      {SYS_timer_create, {{0, Kind::equal, CLOCK_REALTIME}}},
  };
  std::vector<sock_filter> program;
  const auto load = [&](std::size_t at) {
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(at)));
  };
  const auto jump = [&](int test, std::uint32_t value, std::size_t yes, std::size_t no) {
    program.push_back(BPF_JUMP(static_cast<unsigned short>(BPF_JMP | BPF_K | test), value, static_cast<unsigned char>(yes),
                               static_cast<unsigned char>(no)));
  };
  const auto end = [&](std::uint32_t how) { program.push_back(BPF_STMT(BPF_RET | BPF_K, how)); };
  load(offsetof(seccomp_data, arch));
  jump(BPF_JEQ, kMachine, 1, 0);
  end(SECCOMP_RET_ALLOW);
  for (const auto& [call, conditions] : rules) {
    std::size_t left = 2 * conditions.size() + 1;  // instructions of the rule after the next one
    load(offsetof(seccomp_data, nr));
    jump(BPF_JEQ, call, 0, left);
    for (const Condition& one : conditions) {
      load(offsetof(seccomp_data, args) + sizeof(std::uint64_t) * one.argument);
      left -= 2;
      if (one.kind == Kind::not_zero) jump(BPF_JEQ, 0, left, 0);
      if (one.kind != Kind::not_zero) jump(one.kind == Kind::has ? BPF_JSET : BPF_JEQ, one.value, 0, left);
    }
    end(SECCOMP_RET_KILL_PROCESS);
  }
  end(SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return kMachine != 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// The outputs of ranks that run with the jumping clock and the filter; "waits by the wall clock" for a rank that was killed.
std::vector<std::string> ranks_on_a_jumping_clock(int ranks, const testing::RankBody& body) {
  const auto outcomes = testing::run_ranks(ranks, [&](int rank, int size, const std::string& directory) -> std::string {
    if (!forbid_the_wall_clock()) return kNotPermitted;
    jumping.store(true);
    return body(rank, size, directory);
  });
  std::vector<std::string> outputs;
  for (const auto& outcome : outcomes)
    outputs.push_back(outcome.killed && outcome.code == SIGSYS ? "waits by the wall clock" : outcome.output);
  return outputs;
}

#define NEEDS_FILTERS()                                                                                                 \
  if (ranks_on_a_jumping_clock(1, [](int, int, const std::string&) { return std::string(); }).front() == kNotPermitted) \
  GTEST_SKIP() << "this process " << kNotPermitted

// The other cases rely on this.
TEST(Clock, FilterDetectsWallClockWaits) {
  NEEDS_FILTERS();
  const auto waits = [](int rank, int, const std::string&) -> std::string {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    timespec past{1, 0};
    const auto first = std::chrono::system_clock::now();
    const auto second = std::chrono::system_clock::now();
    if (std::chrono::abs(second - first) < std::chrono::hours(1)) return "the clock does not jump";
    ::pthread_mutex_lock(&mutex);
    if (rank == 0) ::pthread_cond_timedwait(&never, &mutex, &past);
    if (rank == 1) ::clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &past, nullptr);
    if (rank == 2) ::usleep(1000);
    if (rank == 2) ::pthread_cond_clockwait(&never, &mutex, CLOCK_MONOTONIC, &past);
    return "has waited";
  };
  EXPECT_THAT(ranks_on_a_jumping_clock(3, waits),
              ::testing::ElementsAre("waits by the wall clock", "waits by the wall clock", "has waited"));
}

class ClockJumps : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, ClockJumps, ::testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

CommunicatorOptions over_wire(const char* wire, int timeout_ms) {
  CommunicatorOptions options;
  options.transports = wire;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  return options;
}

/// When a wait of 700 ms began and ended, for expect_700_ms().
std::string wait_since(std::int64_t start_ns) { return fmt::format("{} {}", start_ns, testing::now_ns()); }

/// `outputs` but that of rank 1 are wait_since(). The rank that began first decides: the others end with it.
void expect_700_ms(const std::vector<std::string>& outputs) {
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> ends_ns;
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    if (rank == 1) continue;
    std::int64_t begin_ns = 0;
    std::istringstream words(outputs[rank]);
    ASSERT_TRUE(words >> begin_ns >> ends_ns.emplace_back()) << outputs[rank];
    first_ns = std::min(first_ns, begin_ns);
  }
  EXPECT_EQ(outputs[1], "");
  for (const std::int64_t end_ns : ends_ns) {
    const double waited = 1e-9 * static_cast<double>(end_ns - first_ns);
    EXPECT_GT(waited, 0.6);
    EXPECT_LT(waited, 10);
  }
}

// Calls that wait in every way, then a call that rank 1 does not make: it times out neither early nor late.
TEST_P(ClockJumps, CallsSucceedAndDeadlinesHold) {
  NEEDS_FILTERS();
  const auto outputs = ranks_on_a_jumping_clock(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto made = testing::join(directory, rank, size, over_wire(GetParam(), 30'000));
    if (!made.ok()) return made.status().to_string();
    Communicator& c = **made;
    std::vector<float> data(50'000, 1);
    const auto sum = [&](const CallOptions& options) {
      return c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum, options);
    };
    for (int k = 0; k < 5; ++k) {
      if (rank == k % size) ::usleep(20'000);
      if (Status status = sum({}); !status.ok()) return status.to_string();
      auto work = c.all_reduce_async(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::max);
      if (!work.ok()) return work.status().to_string();
      if (rank != k % size) ::usleep(20'000);
      if (Status status = work->wait_for(std::chrono::seconds(20)); !status.ok()) return status.to_string();
    }
    if (data.front() != 243) return "WRONG sum";
    if (rank == 1) {
      ::sleep(2);
      return {};
    }
    CallOptions time_limit;
    time_limit.timeout = std::chrono::milliseconds(700);
    const std::int64_t start_ns = testing::now_ns();
    const Status status = sum(time_limit);
    const bool right = status.code() == StatusCode::timeout && testing::late_ranks_in(status.message()) == std::set{1};
    return right ? wait_since(start_ns) : status.to_string();
  });
  expect_700_ms(outputs);
}

TEST_P(ClockJumps, StartUpTimesOutOnTime) {
  NEEDS_FILTERS();
  const auto outputs = ranks_on_a_jumping_clock(3, [](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 1) return {};
    const std::int64_t start_ns = testing::now_ns();
    const Status status = testing::join(directory, rank, size, over_wire(GetParam(), 700)).status();
    const bool right = status.code() == StatusCode::timeout && status.message().find("rank 1") != std::string::npos;
    return right ? wait_since(start_ns) : status.to_string();
  });
  expect_700_ms(outputs);
}

TEST(Clock, StoreWaitsForRequestedTime) {
  NEEDS_FILTERS();
  const auto outputs = ranks_on_a_jumping_clock(1, [](int, int, const std::string&) -> std::string {
    const auto start = Clock::now();
    std::unique_ptr<Store> store;
    for (int port = 24600; port < 24700 && store == nullptr; ++port) {
      auto made = make_tcp_store("127.0.0.1", port, true, "job", start + std::chrono::seconds(20));
      if (made.ok()) store = std::move(made).value();
    }
    if (store == nullptr) return "no port is free";
    if (!store->set("key", "value").ok()) return "the store takes nothing";
    const auto asked = Clock::now();
    const auto none = store->get("nothing", asked + std::chrono::milliseconds(400));
    const double waited = seconds_since(asked);
    if (none.status().code() != StatusCode::timeout) return none.status().to_string();
    return waited > 0.3 && waited < 10 ? "" : fmt::format("400 ms lasted for {} s", waited);
  });
  EXPECT_EQ(outputs.front(), "");
}

}  // namespace
}  // namespace shoal
