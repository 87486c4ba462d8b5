// Repeated calls allocate nothing, and memory does not grow with the message.
//
// The test program interposes malloc to count allocations. Not built under sanitizers, which have their own malloc.
#include <execinfo.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/multiprocess/ranks.h"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
// The stack of the first allocation, for the message.
std::array<void*, 24> first_stack;
std::atomic<int> first_depth{0};
thread_local bool in_count = false;

void count_allocation() {
  if (!counting.load(std::memory_order_relaxed) || in_count) return;
  in_count = true;
  if (allocations.fetch_add(1) == 0) first_depth.store(::backtrace(first_stack.data(), static_cast<int>(first_stack.size())));
  in_count = false;
}

}  // namespace

// libstdc++'s operator new calls these, too.
extern "C" {
void* malloc(std::size_t bytes) { return count_allocation(), __libc_malloc(bytes); }
void* calloc(std::size_t count, std::size_t bytes) { return count_allocation(), __libc_calloc(count, bytes); }
void* realloc(void* old, std::size_t bytes) { return count_allocation(), __libc_realloc(old, bytes); }
void* memalign(std::size_t alignment, std::size_t bytes) { return count_allocation(), __libc_memalign(alignment, bytes); }
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return count_allocation(), __libc_memalign(alignment, bytes); }
int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
  count_allocation();
  *result = __libc_memalign(alignment, bytes);
  return *result == nullptr ? ENOMEM : 0;
}
}

namespace shoal {
namespace {

using testing::expect_ranks;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string first_allocation() {
  std::string text;
  char** names = ::backtrace_symbols(first_stack.data(), first_depth.load());
  for (int i = 0; names != nullptr && i < first_depth.load(); ++i) text += fmt::format("\n  {}", names[i]);
  std::free(names);
  return text;
}

// The first backtrace() allocates.
void load_unwinder() {
  std::array<void*, 4> stack;
  ::backtrace(stack.data(), static_cast<int>(stack.size()));
}

// A call that waits for so long may report for whom it waits, and the report allocates. Reports begin after 0.4 s.
constexpr auto kLongCall = std::chrono::milliseconds(200);
constexpr int kMostTries = 10;

// Checks that no thread of this process allocates during `body`.
template <typename Body>
std::string expect_no_allocation(const char* what, Body body) {
  allocations = 0;
  counting = true;
  const Status status = body();
  counting = false;
  if (!status.ok()) return status.to_string();
  if (allocations.load() != 0)
    return fmt::format("{}: {} allocations, the first:{}", what, allocations.load(), first_allocation());
  return {};
}

TEST(SteadyState, CounterDetectsAllocation) {
  load_unwinder();
  const std::string error = expect_no_allocation("a string", [] {
    const std::string text(1000, 'x');
    return Status(StatusCode::ok, text.substr(1));
  });
  EXPECT_NE(error.find("allocations"), std::string::npos) << "'" << error << "'";
}

struct Case {
  const char* transports;
  int ranks;
  std::size_t bytes;
  bool explain = false;  // SHOAL_EXPLAIN=1: rank 0 counts and times every call
};

// Sets SHOAL_EXPLAIN while it exists.
struct Explaining {
  explicit Explaining(bool on) { ::setenv("SHOAL_EXPLAIN", on ? "1" : "0", 1); }
  ~Explaining() { ::unsetenv("SHOAL_EXPLAIN"); }
};

class RepeatedCalls : public ::testing::TestWithParam<Case> {};

TEST_P(RepeatedCalls, RepeatedCallsDoNotAllocate) {
  const auto [transports, ranks, bytes, explain] = GetParam();
  const Explaining explaining(explain);
  CommunicatorOptions options;
  options.transports = transports;
  const std::size_t count = bytes / sizeof(float);
  expect_ranks(ranks, options, [count](Communicator& c) -> std::string {
    constexpr std::size_t kInFlight = 4;
    constexpr int kCalls = 1000;
    load_unwinder();
    std::vector<std::vector<float>> buffers(2 * kInFlight, std::vector<float>(count, 0.0F));
    bool took_long = false;  // a call; on a busy machine any may
    const auto timed = [&](const auto& call) {
      const auto start = std::chrono::steady_clock::now();
      Status status = call();
      took_long |= std::chrono::steady_clock::now() - start > kLongCall;
      return status;
    };
    const auto blocking = [&](int calls) {
      Status status;
      for (int i = 0; i < calls && status.ok(); ++i) {
        status =
            timed([&] { return c.all_reduce(buffers[0].data(), buffers[0].data(), count, DataType::float32, ReduceOp::sum); });
      }
      return status;
    };
    std::array<Work, 2 * kInFlight> works;
    const auto asynchronous = [&](int rounds, std::size_t in_flight) -> Status {
      for (int i = 0; i < rounds; ++i) {
        for (std::size_t k = 0; k < in_flight; ++k) {
          auto work = c.all_reduce_async(buffers[k].data(), buffers[k].data(), count, DataType::float32, ReduceOp::sum);
          if (!work.ok()) return work.status();
          works[k] = std::move(*work);
        }
        for (std::size_t k = 0; k < in_flight; ++k) {
          if (Status status = timed([&] { return works[k].wait(); }); !status.ok()) return status;
        }
      }
      return {};
    };
    // Twice as many in flight as later, so that the engine's queues have reached their size whatever the timing.
    if (const Status status = asynchronous(10, 2 * kInFlight); !status.ok()) return status.to_string();
    for (Work& work : works) work = Work();
    // A call without a waiting caller starts the progress thread.
    auto alone = c.all_reduce_async(buffers[0].data(), buffers[0].data(), count, DataType::float32, ReduceOp::sum);
    if (!alone.ok()) return alone.status().to_string();
    while (!alone->is_completed()) ::sched_yield();
    alone = Work();
    if (const Status status = blocking(20); !status.ok()) return status.to_string();
    // All ranks repeat a measurement in which a call of any of them took long and some rank allocated.
    const auto measure = [&](const char* what, const auto& body) -> std::string {
      std::string error;
      for (int i = 0; i < kMostTries; ++i) {
        took_long = false;
        error = expect_no_allocation(what, body);
        std::array<std::int32_t, 2> facts{error.empty() ? 0 : 1, took_long ? 1 : 0};
        const Status status = c.all_reduce(facts.data(), facts.data(), facts.size(), DataType::int32, ReduceOp::max);
        if (!status.ok()) return error.empty() ? status.to_string() : error;
        if (facts[0] == 0 || facts[1] == 0) break;
      }
      return error;
    };
    std::string error = measure("blocking", [&] { return blocking(kCalls); });
    error += measure("asynchronous", [&] { return asynchronous(kCalls / static_cast<int>(kInFlight), kInFlight); });
    // A peer's end allocates, so no rank leaves while others count.
    static_cast<void>(c.barrier());
    return error;
  });
}

INSTANTIATE_TEST_SUITE_P(, RepeatedCalls,
                         ::testing::Values(Case{"shm", 2, 8}, Case{"shm", 2, 4096}, Case{"shm", 2, kMiB}, Case{"shm", 3, 4096},
                                           Case{"tcp", 2, 8}, Case{"tcp", 2, 4096}, Case{"tcp", 2, kMiB}, Case{"tcp", 3, 4096},
                                           Case{"shm", 2, 8, true}, Case{"shm", 3, 4096, true}, Case{"tcp", 2, 4096, true}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_ranks_{}_bytes{}", info.param.transports, info.param.ranks,
                                              info.param.bytes, info.param.explain ? "_explaining" : "");
                         });

std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// Connects all ranks at start-up. Otherwise a large call may use a link that a small one did not, and links hold memory.
struct AllConnected {
  AllConnected() { ::setenv("SHOAL_CONNECT", "all", 1); }
  ~AllConnected() { ::unsetenv("SHOAL_CONNECT"); }
};

// Compares the memory after a call of 8 bytes and after one of 64 MiB. The user's buffer is resident before.
std::string check_memory(Communicator& c) {
  std::vector<float> buffer(64 * kMiB / sizeof(float), 1.0F);
  const auto call = [&](std::size_t count) {
    return c.all_reduce(buffer.data(), buffer.data(), count, DataType::float32, ReduceOp::max);
  };
  if (const Status status = call(2); !status.ok()) return status.to_string();
  const std::size_t held = c.memory_bytes();
  const std::size_t resident = resident_bytes();
  if (const Status status = call(buffer.size()); !status.ok()) return status.to_string();
  if (c.memory_bytes() != held) return fmt::format("memory_bytes() went from {} to {}", held, c.memory_bytes());
  if (held == 0 || held > 32 * kMiB) return fmt::format("memory_bytes() is {}", held);
  // Rings become resident at their first use, and pages that peers wrote count too. The rest is code and heap.
  const std::size_t limit = static_cast<std::size_t>(c.size()) * held + 4 * kMiB;
  const std::size_t now = resident_bytes();
  if (now > resident + limit) {
    return fmt::format("64 MiB by {} took {} bytes more, the communicator says that it holds {}", c.last_call().algorithm,
                       now - resident, held);
  }
  // Not earlier: when the keeper of a host leaves, another rank makes connections.
  return c.barrier().ok() ? "" : "another rank failed";
}

TEST(SteadyState, MemoryDoesNotGrowWithMessage) {
  const AllConnected connected;
  for (const int ranks : {2, 3}) {
    for (const char* transports : {"shm", "tcp"}) {
      for (const char* algorithm : {"", "ring", "recursive_doubling"}) {
        SCOPED_TRACE(fmt::format("{} ranks, {}, '{}'", ranks, transports, algorithm));
        CommunicatorOptions options;
        options.transports = transports;
        options.algorithm = algorithm;
        expect_ranks(ranks, options, check_memory);
      }
    }
  }
}

// Ranks with another host name count as another node, so the stages between nodes run here too.
TEST(SteadyState, MemoryDoesNotGrowWithMessageBetweenNodes) {
  const AllConnected connected;
  const auto rename_host = [](int rank) {
    if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return false;
    const std::string name = fmt::format("shoal-test-{}", rank / 2);
    return ::sethostname(name.data(), name.size()) == 0;
  };
  const auto probe =
      testing::run_ranks(1, [&](int rank, int, const std::string&) -> std::string { return rename_host(rank) ? "" : "no"; });
  if (!probe[0].output.empty()) GTEST_SKIP() << "this process may not make UTS namespaces";
  const auto outcomes = testing::run_ranks(4, [&](int rank, int size, const std::string& directory) -> std::string {
    if (!rename_host(rank)) return "cannot rename the host";
    auto communicator = testing::join(directory, rank, size, {});
    if (!communicator.ok()) return communicator.status().to_string();
    if ((*communicator)->nodes() != 2) return fmt::format("{} nodes", (*communicator)->nodes());
    return check_memory(**communicator);
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal
