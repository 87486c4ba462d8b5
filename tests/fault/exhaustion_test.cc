// Jobs over TCP on a system without resources: interrupted calls, no memory for packets, send buffers of a few kilobytes (short
// writes and reads), no descriptors, no threads, and a wall clock that jumps by hours. Every seed ends with right results or,
// if the job cannot start, with an error that names what is missing.
//
// The test interposes the system's functions. SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, other seeds than
// the default.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/mentions.h"
#include "tests/multiprocess/call_model.h"
#include "tests/multiprocess/ranks.h"
#include "tests/seeds.h"

namespace {

std::atomic<bool> faults{false};
std::atomic<bool> memory_faults{false};    // not during start-up, where a failed connection is an error
std::atomic<std::uint32_t> state{1};       // of the generator below
std::atomic<int> no_descriptor_after{-1};  // this many sockets; negative: never
std::atomic<bool> no_threads{false};
std::atomic<std::uint64_t> injected{0};

/// True once in `every`, by xorshift32 (Marsaglia 2003).
bool chance(std::uint32_t every) {
  std::uint32_t x = state.load(std::memory_order_relaxed);
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  state.store(x, std::memory_order_relaxed);
  const bool yes = faults.load(std::memory_order_relaxed) && x % every == 0;
  if (yes) injected.fetch_add(1, std::memory_order_relaxed);
  return yes;
}

int fail_with(int error) {
  errno = error;
  return -1;
}

int small_buffers(int fd) {
  if (fd < 0 || !faults.load()) return fd;
  const int bytes = 4096;
  ::syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  return fd;
}

bool out_of_descriptors() {
  const int left = no_descriptor_after.load();
  if (!faults.load() || left < 0) return false;
  if (left > 0) no_descriptor_after.store(left - 1);
  return left == 0;
}

}  // namespace

extern "C" {

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (chance(40)) return fail_with(EINTR);
  if (chance(60)) return fail_with(ENOBUFS);
  return ::syscall(SYS_sendmsg, fd, message, flags);
}
ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  if (chance(40)) return fail_with(EINTR);
  if (memory_faults && chance(60)) return fail_with(ENOBUFS);
  return ::syscall(SYS_sendto, fd, bytes, size, flags, nullptr, 0);
}
ssize_t recv(int fd, void* buffer, size_t bytes, int flags) {
  if (chance(40)) return fail_with(EINTR);
  if (memory_faults && chance(60)) return fail_with(ENOMEM);
  return ::syscall(SYS_recvfrom, fd, buffer, bytes, flags, nullptr, nullptr);
}
int socket(int domain, int type, int protocol) noexcept {
  if (out_of_descriptors()) return fail_with(EMFILE);
  return small_buffers(static_cast<int>(::syscall(SYS_socket, domain, type, protocol)));
}
int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  if (chance(4)) return fail_with(EINTR);
  if (chance(4)) return fail_with(EMFILE);
  return small_buffers(static_cast<int>(::syscall(SYS_accept4, fd, address, length, flags)));
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  return no_threads.load() ? EAGAIN : real(thread, attributes, body, argument);
}
int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  if (faults.load() && level == SOL_SOCKET && name == SO_SNDBUF) return 0;
  return static_cast<int>(::syscall(SYS_setsockopt, fd, level, name, value, length));
}
int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME && faults.load()) time->tv_sec += chance(2) ? 7200 : -7200;
  return result;
}

}  // extern "C"

namespace shoal {
namespace {

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kSeeds = 4;
#else
constexpr std::uint64_t kSeeds = 24;
#endif

std::string run_calls(Communicator& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int k = 0; k < 12; ++k) {
    const testing::ModelCall call = testing::random_call(random, c.size(), k % 4 == 0 ? 100'000 : 2'000);
    const testing::ModelBuffers buffers(call, c.rank());
    auto work = testing::make_call(c, call, buffers);
    const Status status = work.ok() ? work->wait() : work.status();
    if (!status.ok()) return fmt::format("call {} ({}): {}", k, call.text(), status.to_string());
    if (const std::string wrong = buffers.check(); !wrong.empty())
      return fmt::format("WRONG RESULT of {}: {}", call.text(), wrong);
  }
  return {};
}

void begin_faults(std::uint64_t seed, int rank) {
  state.store(static_cast<std::uint32_t>(seed * 2654435761U + static_cast<std::uint32_t>(rank) + 1) | 1U);
  faults.store(true);
}

TEST(Exhaustion, InjectedFaultsLeaveResultsCorrect) {
  const testing::Seeds seeds = testing::wanted_seeds({0, kSeeds});
  for (std::uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
    const int ranks = 2 + static_cast<int>(seed % 3);
    const auto outcomes = testing::run_ranks(ranks, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_SOCKETS_PER_PEER", seed % 2 == 0 ? "1" : "3", 1);
      ::setenv("SHOAL_PROBE", "0", 1);
      begin_faults(seed, rank);
      CommunicatorOptions options;
      options.transports = "tcp";
      options.timeout = std::chrono::seconds(60);
      auto communicator = testing::join(directory, rank, size, options);
      if (!communicator.ok()) return "create: " + communicator.status().to_string();
      memory_faults.store(true);
      // Enough calls for every rank to get a fault.
      std::string wrong;
      for (std::uint64_t part = 0; part < 4 && wrong.empty(); ++part) wrong = run_calls(**communicator, seed + 1000 * part);
      // Proves that the library calls the interposed functions.
      return wrong.empty() && injected.load() == 0 ? "no faults" : wrong;
    });
    testing::expect_all_well(outcomes, fmt::format("seed {}", seed));
  }
  std::cout << seeds.count << " seeds from " << seeds.first << "\n";
}

TEST(Exhaustion, StartUpWithoutDescriptorsReportsReason) {
  for (const int after : {0, 2}) {
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_PROBE", "0", 1);
      if (rank == 0) no_descriptor_after.store(after);
      faults.store(true);
      CommunicatorOptions options;
      options.transports = "tcp";
      options.timeout = std::chrono::milliseconds(1500);
      return testing::join(directory, rank, size, options).status().to_string();
    });
    EXPECT_THAT(outcomes[0].output, ::testing::HasSubstr("Too many open files")) << "after " << after;
    EXPECT_THAT(outcomes[1].output, ::testing::HasSubstr("rank 0")) << "after " << after;
  }
}

// The descriptor that cannot be made is each of sockets, eventfds, epoll, timers, shared memory, descriptors sent by peers.
TEST(Exhaustion, FewDescriptorsAllowStartOrReportReason) {
  for (const char* transports : {"shm", "tcp"}) {
    bool started = false;
    int few = 0;
    for (; few < 60 && !started && !HasFailure(); ++few) {
      const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
        ::setenv("SHOAL_PROBE", "0", 1);
        if (rank == 0) {
          const int next = ::dup(0);
          ::close(next);
          const rlimit limit{static_cast<rlim_t>(next + few), static_cast<rlim_t>(next + few)};
          if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "no limit";
        }
        CommunicatorOptions options;
        options.transports = transports;
        options.timeout = std::chrono::milliseconds(1500);
        auto c = testing::join(directory, rank, size, options);
        if (!c.ok()) return c.status().to_string();
        float one = 1;
        auto work = (*c)->all_reduce_async(&one, &one, 1, DataType::float32, ReduceOp::sum);
        return work.ok() ? work->wait().to_string() : work.status().to_string();
      });
      for (const auto& outcome : outcomes) EXPECT_EQ(testing::bad_end(outcome), "") << few << " over " << transports;
      started = outcomes[0].output == "ok" && outcomes[1].output == "ok";
      if (started) continue;
      EXPECT_THAT(outcomes[0].output, ::testing::AnyOf(::testing::HasSubstr("Too many open files"),
                                                       ::testing::HasSubstr("ulimit -n"), ::testing::HasSubstr("rank 1")))
          << few << " over " << transports;
      EXPECT_THAT(outcomes[1].output, ::testing::HasSubstr("rank 0")) << few << " over " << transports;
    }
    EXPECT_TRUE(started) << transports;
    EXPECT_GT(few, 3) << transports;
  }
}

// No thread waits for the call, so only the progress thread could drive it.
TEST(Exhaustion, UnwaitedCallFailsWhenNoThreadCanStart) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, {});
    if (!c.ok()) return c.status().to_string();
    no_threads.store(rank == 0);
    std::vector<float> data(1000);
    auto work = (*c)->all_reduce_async(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum);
    if (!work.ok()) return work.status().to_string();
    const bool ends = testing::eventually([&] { return work->is_completed(); });
    return ends ? work->status().to_string() : "the call hangs";
  });
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.output, testing::Mentions("system_error", "thread", "Resource temporarily unavailable"));
}

}  // namespace
}  // namespace shoal
