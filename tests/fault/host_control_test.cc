// The control plane of ranks that share memory: no sockets, and the same promises with many ranks, stopped ranks, no pidfds.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/fault/clauses.h"
#include "tests/fault/fault_report.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_count.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using testing::call_until_error;
using testing::Mentions;
using testing::now_ns;
using testing::parse;
using testing::Report;
using testing::sockets_of_this_process;
using testing::sum;

constexpr int kManyRanks = 24;

CommunicatorOptions over_shm() {
  CommunicatorOptions options;
  options.transports = "shm";
  options.timeout = std::chrono::seconds(60);
  return options;
}

/// Shared with the ranks of a test.
struct Facts {
  std::atomic<std::int64_t> fault_ns{0};  ///< steady clock
  std::atomic<pid_t> stopped{0};          ///< a process that is to be stopped
  std::atomic<bool> continued{false};     ///< it runs again
};
using SharedFacts = testing::SharedFacts<Facts>;

TEST(HostControl, HasOneSocketOnly) {
  testing::expect_ranks(4, over_shm(), [](Communicator& c) -> std::string {
    if (const Status status = sum(c); !status.ok()) return status.to_string();
    const int sockets = sockets_of_this_process();
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    return sockets == 1 ? "" : fmt::format("{} sockets are open, not the bell alone", sockets);
  });
}

TEST(HostControl, KilledRankIsNamedByAllOthers) {
  const SharedFacts facts;
  const auto outcomes = testing::run_ranks(kManyRanks, [&](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    for (int k = 0; rank == 7 && k < 20; ++k) static_cast<void>(sum(**c));
    if (rank == 7) {
      facts->fault_ns = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    return call_until_error(**c, facts->fault_ns);
  });
  for (int rank = 0; rank < kManyRanks; ++rank) {
    if (rank == 7) continue;
    const Report report = parse(outcomes[static_cast<std::size_t>(rank)].output);
    EXPECT_EQ(report.code, "peer_failed") << report.message;
    EXPECT_EQ(testing::first_rank_named_in(report.message), 7) << report.message;
    EXPECT_LT(report.seconds, 1.0 * kSlack) << "rank " << rank;
  }
}

TEST(HostControl, AbortReachesAllRanks) {
  const SharedFacts facts;
  const auto outcomes = testing::run_ranks(kManyRanks, [&](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    if (rank == 11) {
      if (const Status status = sum(**c); !status.ok()) return status.to_string();
      (*c)->abort("the loss is not a number");
    }
    return call_until_error(**c, facts->fault_ns);
  });
  for (const auto& outcome : outcomes) {
    const Report report = parse(outcome.output);
    EXPECT_EQ(report.code, "aborted") << report.message;
    EXPECT_THAT(report.message, Mentions("rank 11", "the loss is not a number"));
  }
}

TEST(HostControl, RankThatLeavesIsNamedByThoseThatNeedIt) {
  const SharedFacts facts;
  const auto outcomes = testing::run_ranks(kManyRanks, [&](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    if (const Status status = (*c)->barrier(); !status.ok()) return status.to_string();
    if (rank == 23) return "left";
    return call_until_error(**c, facts->fault_ns);
  });
  for (int rank = 0; rank < kManyRanks - 1; ++rank) {
    const Report report = parse(outcomes[static_cast<std::size_t>(rank)].output);
    EXPECT_EQ(report.code, "peer_failed") << report.message;
    EXPECT_EQ(testing::first_rank_named_in(report.message), 23) << report.message;
  }
}

// Rank 1 is stopped while the other two make and leave so many groups that its unread notices fill the board.
TEST(HostControl, StoppedRankDelaysNoMessageToOthers) {
  const SharedFacts facts;
  const auto outcomes = testing::run_ranks(3, [&](int rank, int size, const std::string& directory) -> std::string {
    auto made = testing::join(directory, rank, size, over_shm());
    if (!made.ok()) return made.status().to_string();
    Communicator& c = **made;
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    if (rank == 1) {
      facts->stopped = ::getpid();
      while (!facts->continued) ::usleep(1000);
      return call_until_error(c, facts->fault_ns);
    }
    while (facts->stopped == 0) ::usleep(1000);
    if (rank == 0) ::kill(facts->stopped, SIGSTOP);
    // Rank 1 is a member of none of them; the notices pass it all the same.
    const std::vector<int> pair{0, 2};
    for (int k = 0; k < 600; ++k) {
      auto group = c.group(pair);
      if (!group.ok()) return group.status().to_string();
      if (const Status status = sum(**group); !status.ok()) return "group: " + status.to_string();
    }
    if (rank == 0) {
      c.abort("enough");
      ::usleep(100'000);
      facts->continued = true;
      ::kill(facts->stopped, SIGCONT);
    }
    return call_until_error(c, facts->fault_ns);
  });
  for (const auto& outcome : outcomes) {
    const Report report = parse(outcome.output);
    EXPECT_EQ(report.code, "aborted") << report.message;
    EXPECT_THAT(report.message, Mentions("rank 0", "enough"));
  }
}

// Rank 1 sends all that rank 0 needs, then aborts. Rank 0, which is in the call, looks at the board while both arrive, or
// later.
TEST(HostControl, CallWithAllItsDataSucceedsDespiteAbort) {
  testing::SharedCount calls_of_rank_0;
  testing::expect_ranks(2, over_shm(), [&](Communicator& c) -> std::string {
    for (int round = 0; round < 100; ++round) {
      auto group = c.split(0, c.rank());
      if (!group.ok()) return group.status().to_string();
      std::vector<std::int32_t> data(round % 2 == 0 ? 4 : 20'000, c.rank());
      if (const Status status = (*group)->barrier(); !status.ok()) return status.to_string();
      if (c.rank() == 1 && round % 4 >= 2) std::this_thread::sleep_for(milliseconds(2));
      auto work = (*group)->broadcast_async(data.data(), data.size(), DataType::int32, 1);
      if (!work.ok()) return fmt::format("round {}: {}", round, work.status().to_string());
      if (c.rank() == 0) {
        calls_of_rank_0.add();
        if (round % 4 < 2) std::this_thread::sleep_for(milliseconds(2));
      }
      const Status status = work->wait();
      if (c.rank() == 1) {
        if (!calls_of_rank_0.reaches(round + 1)) return fmt::format("round {}: rank 0 makes no call", round);
        (*group)->abort("after its call");
      }
      if (!status.ok()) return fmt::format("round {}: {}", round, status.to_string());
      if (data.back() != 1) return fmt::format("round {}: wrong data", round);
      const Status next = (*group)->barrier();
      if (c.rank() == 0 && next.code() != StatusCode::aborted) return fmt::format("round {}: {}", round, next.to_string());
      if (const Status others = c.barrier(); !others.ok()) return others.to_string();
    }
    return "";
  });
}

// Only a pidfd shows the end of a process that shares memory. Without one, the ranks of the host have connections.
TEST(HostControl, DeathWithoutPidfdIsDetected) {
  const SharedFacts facts;
  const auto outcomes = testing::run_ranks(3, [&](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 1 && !testing::deny_pidfd()) return "no filter";
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    for (int k = 0; rank == 1 && k < 20; ++k) static_cast<void>(sum(**c));
    if (rank == 1) {
      facts->fault_ns = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    return call_until_error(**c, facts->fault_ns);
  });
  if (outcomes[1].output == "no filter") GTEST_SKIP() << "this system has no seccomp filters";
  for (const std::size_t rank : {0U, 2U}) {
    const Report report = parse(outcomes[rank].output);
    EXPECT_EQ(report.code, "peer_failed") << report.message;
    EXPECT_EQ(testing::first_rank_named_in(report.message), 1) << report.message;
    EXPECT_LT(report.seconds, 1.0 * kSlack) << "rank " << rank;
  }
}

}  // namespace
}  // namespace shoal
