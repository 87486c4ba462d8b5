// SHOAL_CONNECT: links that are made at start-up, and those that are made when a call or message first needs them.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using testing::expect_ranks;
using testing::Mentions;

CommunicatorOptions over_tcp(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  CommunicatorOptions options;
  options.transports = "tcp";
  options.timeout = timeout;
  return options;
}

int open_descriptors() {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

class Connect : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ::setenv("SHOAL_CONNECT", GetParam(), 1);
    ::setenv("SHOAL_PROBE", "0", 1);  // it connects the links that it measures
  }
  void TearDown() override {
    ::unsetenv("SHOAL_CONNECT");
    ::unsetenv("SHOAL_PROBE");
  }
  static bool is(const std::string& value) { return GetParam() == value; }
};
INSTANTIATE_TEST_SUITE_P(, Connect, ::testing::Values("all", "usual", "none"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(Connect, CallsConnectWhatTheyUse) {
  expect_ranks(6, over_tcp(), [](Communicator& c) -> std::string {
    constexpr int kSockets = 2;  // for each link
    const int before = open_descriptors();
    // Messages around a ring: two links for each rank. The second round begins when all have counted.
    const int next = (c.rank() + 1) % c.size();
    const int last = (c.rank() + c.size() - 1) % c.size();
    const auto pass_on = [&]() -> Status {
      std::int32_t value = -1;
      if (c.rank() != 0) {
        if (Status status = c.recv(&value, 1, DataType::int32, last); !status.ok()) return status;
      }
      if (Status status = c.send(&last, 1, DataType::int32, next); !status.ok()) return status;
      return c.rank() != 0 ? Status() : c.recv(&value, 1, DataType::int32, last);
    };
    if (const Status status = pass_on(); !status.ok()) return status.to_string();
    const int of_ring = open_descriptors() - before;
    if (is("none") ? of_ring != 2 * kSockets : of_ring != 0) return fmt::format("a ring made {} descriptors", of_ring);
    if (const Status status = pass_on(); !status.ok()) return status.to_string();
    // All links.
    std::vector<std::int32_t> out(static_cast<std::size_t>(c.size()), c.rank());
    std::vector<std::int32_t> in(out.size());
    const Status status = c.all_to_all(out.data(), in.data(), 1, DataType::int32);
    if (!status.ok()) return status.to_string();
    for (int rank = 0; rank < c.size(); ++rank) {
      if (in[static_cast<std::size_t>(rank)] != rank) return fmt::format("all_to_all: {}", in[static_cast<std::size_t>(rank)]);
    }
    float one = 1;
    if (const Status sum = c.all_reduce(&one, &one, 1, DataType::float32, ReduceOp::sum); !sum.ok()) return sum.to_string();
    if (one != static_cast<float>(c.size())) return fmt::format("sum {}", one);
    const int of_all = open_descriptors() - before;
    if (of_all > (is("none") ? (c.size() - 1) * kSockets : 0)) return fmt::format("all calls made {} descriptors", of_all);
    return {};
  });
}

TEST_P(Connect, AnySourceTakesEverySender) {
  expect_ranks(5, over_tcp(), [](Communicator& c) -> std::string {
    constexpr int kReceiver = 2;
    std::vector<std::int32_t> data(100'000, c.rank());
    if (c.rank() != kReceiver) {
      if (const Status status = c.send(data.data(), 1, DataType::int32, kReceiver, 0); !status.ok()) return status.to_string();
      const Status status = c.send(data.data(), data.size(), DataType::int32, kReceiver, 1);
      return status.ok() ? "" : status.to_string();
    }
    for (const std::size_t count : {std::size_t{1}, data.size()}) {
      int sum = 0;
      for (int k = 1; k < c.size(); ++k) {
        auto work = c.recv_async(data.data(), count, DataType::int32, kAnySource, count == 1 ? 0 : 1);
        if (!work.ok()) return work.status().to_string();
        if (const Status status = work->wait(); !status.ok()) return status.to_string();
        if (data[count - 1] != work->source()) return fmt::format("{} from {}", data[count - 1], work->source());
        sum += work->source();
      }
      if (sum != 0 + 1 + 3 + 4) return fmt::format("senders add up to {}", sum);
    }
    return {};
  });
}

TEST_P(Connect, GroupsConnectTheirPairs) {
  expect_ranks(6, over_tcp(), [](Communicator& c) -> std::string {
    const auto half = c.split(c.rank() % 2, 0);
    if (!half.ok()) return half.status().to_string();
    for (int turn = 0; turn < 3; ++turn) {
      std::int32_t sum = c.rank();
      const Status status = (*half)->all_reduce(&sum, &sum, 1, DataType::int32, ReduceOp::sum);
      if (!status.ok()) return status.to_string();
      if (sum != (c.rank() % 2 == 0 ? 0 + 2 + 4 : 1 + 3 + 5)) return fmt::format("sum {}", sum);
    }
    return {};
  });
}

TEST_P(Connect, LatePeerIsNamed) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_tcp(std::chrono::seconds(10)));
    if (!c.ok()) return c.status().to_string();
    std::int32_t value = 0;
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return {};
    }
    if (rank == 1) return {};
    CallOptions soon;
    soon.timeout = std::chrono::seconds(1);
    return (*c)->send(&value, 1, DataType::int32, 2, 0, soon).to_string();
  });
  const std::string& report = outcomes[0].output;
  if (is("none")) {
    EXPECT_THAT(report, Mentions("timeout", "rank 2", "connecting to rank 2, for 1."));
  } else {
    EXPECT_EQ(report, "ok");
  }
}

TEST_P(Connect, PeerThatDiesBeforeItsLinkExistsIsNamed) {
  const auto outcomes = testing::run_ranks(4, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_tcp());
    if (!c.ok()) return c.status().to_string();
    if (rank == 1) ::raise(SIGKILL);
    std::int32_t value = 0;
    const auto start = std::chrono::steady_clock::now();
    const Status status = (*c)->all_reduce(&value, &value, 1, DataType::int32, ReduceOp::sum);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return fmt::format("{}{}", seconds < 5 ? "" : fmt::format("{} s: ", seconds), status.to_string());
  });
  for (const int rank : {0, 2, 3}) {
    const std::string& report = outcomes[static_cast<std::size_t>(rank)].output;
    EXPECT_THAT(report, ::testing::StartsWith("peer_failed"));
    EXPECT_THAT(report, Mentions("rank 1 died"));
  }
}

TEST_P(Connect, DifferentCallsAreAMismatch) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_tcp());
    if (!c.ok()) return c.status().to_string();
    float value = 0;
    return (rank == 1 ? (*c)->broadcast(&value, 1, DataType::float32, 1)
                      : (*c)->all_reduce(&value, &value, 1, DataType::float32, ReduceOp::sum))
        .to_string();
  });
  // Rank 1 may have sent its data, and ended, before another rank calls.
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}})
    EXPECT_THAT(outcomes[rank].output, Mentions("mismatch", "rank 1", "broadcast", "all_reduce"));
}

TEST(ConnectLimits, LackOfDescriptorsIsOneClearError) {
#ifdef SHOAL_SANITIZED
  GTEST_SKIP() << "UndefinedBehaviorSanitizer needs descriptors to check the type of an object";
#endif
  ::setenv("SHOAL_CONNECT", "none", 1);
  ::setenv("SHOAL_PROBE", "0", 1);
  const auto outcomes = testing::run_ranks(4, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_tcp());
    if (!c.ok()) return c.status().to_string();
    if (rank == 3) {
      rlimit tight{};
      ::getrlimit(RLIMIT_NOFILE, &tight);
      const int lowest_free = ::dup(0);
      ::close(lowest_free);
      tight.rlim_cur = static_cast<rlim_t>(lowest_free);
      ::setrlimit(RLIMIT_NOFILE, &tight);
    }
    std::int32_t value = 0;
    return (*c)->all_reduce(&value, &value, 1, DataType::int32, ReduceOp::sum).to_string();
  });
  ::unsetenv("SHOAL_CONNECT");
  ::unsetenv("SHOAL_PROBE");
  for (const auto& outcome : outcomes) EXPECT_THAT(outcome.output, Mentions("Too many open files", "ulimit -n"));
}

TEST(ConnectLimits, UnknownValueIsRefused) {
  ::setenv("SHOAL_CONNECT", "some", 1);
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    return testing::join(directory, rank, size, over_tcp()).status().to_string();
  });
  ::unsetenv("SHOAL_CONNECT");
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.output, Mentions("invalid_argument", "SHOAL_CONNECT='some'", "all, usual, none"));
}

}  // namespace
}  // namespace shoal
