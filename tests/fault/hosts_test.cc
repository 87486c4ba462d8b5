// Control messages between hosts: real processes on several hosts (host names of their own), whose keepers are killed and
// stopped.
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/fault/clauses.h"
#include "tests/fault/fault_report.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using testing::call_until_error;
using testing::Mentions;
using testing::now_ns;
using testing::parse;
using testing::Report;
using testing::sockets_of_this_process;
using testing::sum;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kBetweenHosts_s = 2;
constexpr int kMostRanks = 32;

/// Shared by the ranks of a test.
struct Facts {
  std::atomic<std::int64_t> fault_ns{0};  ///< steady clock
  std::atomic<int> ready{0};              ///< ranks that wait for the fault
  std::atomic<int> met{0};                ///< ranks that are past the first barrier
  std::atomic<bool> computes{false};      ///< a rank makes no more calls
  std::atomic<bool> done{false};
  std::array<std::atomic<pid_t>, kMostRanks> pids{};
};
using SharedFacts = testing::SharedFacts<Facts>;

/// How many ranks each host has; the ranks are numbered host by host.
using Hosts = std::vector<int>;

int ranks_of(const Hosts& hosts) {
  int ranks = 0;
  for (const int each : hosts) ranks += each;
  return ranks;
}

int host_of(const Hosts& hosts, int rank) {
  int host = 0;
  for (int end = hosts[0]; rank >= end; end += hosts[static_cast<std::size_t>(host)]) ++host;
  return host;
}

bool move_to_host(int host) {
  const std::string name = fmt::format("shoal-host-{}", host);
  if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return false;
  return ::sethostname(name.data(), name.size()) == 0;
}

constexpr const char* kNoHosts = "no namespaces";

using Body = std::function<std::string(Communicator&)>;

/// Runs `body` in each rank; its outputs by rank. `transports`: of the communicator.
std::vector<std::string> run_on(const Hosts& hosts, const SharedFacts& facts, const Body& body,
                                const std::string& transports = "shm,tcp", const char* connect = "usual") {
  const auto outcomes = testing::run_ranks(ranks_of(hosts), [&](int rank, int size, const std::string& directory) {
    if (!move_to_host(host_of(hosts, rank))) return std::string(kNoHosts);
    facts->pids[static_cast<std::size_t>(rank)] = ::getpid();
    ::setenv("SHOAL_PROBE", "0", 1);
    ::setenv("SHOAL_FLIGHT_RECORD", "off", 1);
    ::setenv("SHOAL_CONNECT", connect, 1);
    CommunicatorOptions options;
    options.transports = transports;
    options.timeout = std::chrono::seconds(60);
    auto made = testing::join(directory, rank, size, options);
    return made.ok() ? body(**made) : "start: " + made.status().to_string();
  });
  std::vector<std::string> outputs;
  for (const auto& outcome : outcomes) outputs.push_back(outcome.hung ? "hung" : outcome.output);
  return outputs;
}

bool skipped(const std::vector<std::string>& outputs) { return outputs[0] == kNoHosts; }

/// Expects that all ranks but `dead` and `silent` have named one of `dead` within two seconds.
void expect_named(const std::vector<std::string>& outputs, const std::set<int>& dead, const std::set<int>& silent = {}) {
  for (int rank = 0; rank < static_cast<int>(outputs.size()); ++rank) {
    if (dead.contains(rank) || silent.contains(rank)) continue;
    const Report report = parse(outputs[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(report.code, "peer_failed") << "rank " << rank << ": " << report.message;
    EXPECT_TRUE(dead.contains(testing::first_rank_named_in(report.message))) << "rank " << rank << ": " << report.message;
    EXPECT_LT(report.seconds, kBetweenHosts_s * kSlack) << "rank " << rank << ": " << report.message;
  }
}

/// Rank `killer` waits until all ranks make calls, then kills the `victims` and itself where it is one of them.
Body kill_at_once(const SharedFacts& facts, const std::vector<int>& victims) {
  return [&facts, victims](Communicator& c) -> std::string {
    if (c.rank() == victims.front()) {
      for (int k = 0; k < 10; ++k) static_cast<void>(sum(c));
      facts->fault_ns = now_ns();
      for (std::size_t i = victims.size(); i-- > 0;) ::kill(facts->pids[static_cast<std::size_t>(victims[i])], SIGKILL);
    }
    return call_until_error(c, facts->fault_ns);
  };
}

void expect_death_named(const Hosts& hosts, const std::vector<int>& victims, const std::string& transports = "shm,tcp") {
  const SharedFacts facts;
  const auto outputs = run_on(hosts, facts, kill_at_once(facts, victims), transports);
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  expect_named(outputs, {victims.begin(), victims.end()});
}

TEST(HostDeaths, KeeperIsNamed) { expect_death_named({2, 2, 2, 2}, {4}); }
TEST(HostDeaths, RankThatIsNoKeeperIsNamed) { expect_death_named({2, 2, 2}, {3}); }
TEST(HostDeaths, KeeperAndStandbyAreNamed) { expect_death_named({3, 3, 3}, {3, 4}); }
TEST(HostDeaths, WholeHostIsNamed) { expect_death_named({2, 2, 2}, {2, 3}); }
TEST(HostDeaths, ThreeHostsAtOnceAreNamed) { expect_death_named({2, 1, 2, 1, 2, 1}, {0, 1, 3, 4, 8}); }
TEST(HostDeaths, RanksThatAreHostsAreNamed) { expect_death_named({1, 1, 1, 1, 1, 1}, {2}); }
TEST(HostDeaths, RanksWithoutSharedMemoryAreNamed) { expect_death_named({5}, {0}, "tcp"); }
TEST(HostDeaths, UnequalHosts) { expect_death_named({4, 1}, {4}); }

// With connections between all ranks of different hosts.
TEST(HostDeaths, RankIsNamedWithoutOverlay) {
  ::setenv("SHOAL_OVERLAY", "0", 1);
  expect_death_named({2, 2, 1}, {2});
  expect_death_named({3}, {1}, "tcp");
  ::unsetenv("SHOAL_OVERLAY");
}

// All ranks of the host with the dead one compute: a thread of their own reports the death.
TEST(HostDeaths, DeathBesideComputingRanksIsNamed) {
  const SharedFacts facts;
  const auto outputs = run_on({3, 2}, facts, [&](Communicator& c) -> std::string {
    const std::vector<int> others{1, 3, 4};
    auto group = c.group(others);
    if (!group.ok() && c.rank() != 0 && c.rank() != 2) return group.status().to_string();
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    facts->met.fetch_add(1);
    if (c.rank() == 1) {
      while (facts->met < c.size()) ::usleep(1000);  // the death would end the barrier of a rank that is still in it
      facts->fault_ns = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    if (c.rank() == 3 || c.rank() == 4) {
      std::string report = call_until_error(**group, facts->fault_ns);
      if (facts->ready.fetch_add(1) == 1) facts->done = true;
      return report;
    }
    while (!facts->done) ::usleep(1000);  // computes
    return "computed";
  });
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  for (const std::size_t rank : {3U, 4U}) {
    const Report report = parse(outputs[rank]);
    EXPECT_EQ(report.code, "peer_failed") << report.message;
    EXPECT_LT(report.seconds, kBetweenHosts_s * kSlack) << report.message;
    EXPECT_THAT(report.message, ::testing::HasSubstr("rank 0"));  // of the group
  }
}

// The keeper of host 1 is stopped. The next rank takes over, and passes on that a third one has died.
TEST(HostDeaths, StandbyReplacesStoppedKeeper) {
  const SharedFacts facts;
  const auto outputs = run_on({2, 3, 2}, facts, [&](Communicator& c) -> std::string {
    const std::vector<int> others{0, 1, 3, 4, 5, 6};
    if (c.rank() == 2) {
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
      facts->computes = true;
      while (!facts->done) ::usleep(1000);
      return "continued";
    }
    auto group = c.group(others);
    if (!group.ok()) return group.status().to_string();
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    if (c.rank() == 4) {
      while (!facts->computes) ::usleep(1000);
      ::kill(facts->pids[2], SIGSTOP);
      for (const auto until = Clock::now() + milliseconds(1500); Clock::now() < until;) {
        if (const Status status = sum(**group); !status.ok()) return status.to_string();
      }
      facts->fault_ns = now_ns();
      ::kill(::getpid(), SIGKILL);
    }
    std::string report = call_until_error(**group, facts->fault_ns);
    if (facts->ready.fetch_add(1) == 4) {
      facts->done = true;
      ::kill(facts->pids[2], SIGCONT);
    }
    return report;
  });
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  for (const std::size_t rank : {0U, 1U, 3U, 5U, 6U}) {
    const Report report = parse(outputs[rank]);
    EXPECT_EQ(report.code, "peer_failed") << report.message;
    EXPECT_EQ(testing::first_rank_named_in(report.message), 4) << report.message;
    EXPECT_LT(report.seconds, kBetweenHosts_s * kSlack) << report.message;
  }
}

TEST(HostMessages, AbortReachesAllRanks) {
  const SharedFacts facts;
  const auto outputs = run_on({2, 2, 2, 2}, facts, [&](Communicator& c) -> std::string {
    if (c.rank() == 5) {
      if (const Status status = sum(c); !status.ok()) return status.to_string();
      facts->fault_ns = now_ns();
      c.abort("the loss is not a number");
    }
    return call_until_error(c, facts->fault_ns);
  });
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  for (const std::string& output : outputs) {
    const Report report = parse(output);
    EXPECT_EQ(report.code, "aborted") << report.message;
    EXPECT_THAT(report.message, Mentions("rank 5", "the loss is not a number"));
  }
}

// Ranks leave while others still make calls, the keepers first: the others learn it, and lose nothing else.
TEST(HostMessages, RanksLeaveInAnyOrder) {
  const SharedFacts facts;
  const auto outputs = run_on({3, 2, 2}, facts, [&](Communicator& c) -> std::string {
    const std::vector<int> last{2, 6};
    const bool stays = c.rank() == 2 || c.rank() == 6;
    std::unique_ptr<Communicator> group;
    if (stays) {
      auto made = c.group(last);
      if (!made.ok()) return made.status().to_string();
      group = std::move(made).value();
    }
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    if (!stays) return "";
    for (int k = 0; k < 100; ++k) {
      ::usleep(5000);
      if (const Status status = sum(*group); !status.ok()) return status.to_string();
    }
    const Status needs_all = sum(c);
    return needs_all.code() == StatusCode::peer_failed ? "" : "call of ranks that have left: " + needs_all.to_string();
  });
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  for (const std::string& output : outputs) EXPECT_EQ(output, "");
}

TEST(HostMessages, LateRankIsNamedAtDeadline) {
  const SharedFacts facts;
  const auto outputs = run_on({2, 2, 2}, facts, [&](Communicator& c) -> std::string {
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    if (c.rank() == 3) {
      while (facts->ready < 5) ::usleep(1000);
      return "late";
    }
    std::array<float, 64> data{};
    CallOptions options;
    options.timeout = milliseconds(1500);
    const Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum, options);
    facts->ready.fetch_add(1);
    return fmt::format("{}|0|{}", to_string(status.code()), status.message());
  });
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    if (rank == 3) continue;
    const Report report = parse(outputs[rank]);
    EXPECT_EQ(report.code, "timeout") << report.message;
    EXPECT_THAT(report.message, ::testing::HasSubstr("not in the call: rank 3")) << report.message;
  }
}

// With eight hosts a keeper has five connections with others, and the other rank of its host none. On a busy machine a keeper
// may be taken for stopped, and the other rank makes the connections. So one of five rounds counts.
TEST(HostMessages, KeeperAloneHasConnections) {
  constexpr int kRounds = 5;
  const SharedFacts facts;
  const auto count = [](Communicator& c) -> std::string {
    std::string counts;
    for (int round = 0; round < kRounds; ++round) {
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
      counts += fmt::format("{} ", sockets_of_this_process());
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    }
    return counts;
  };
  // All links are made at start, so that all ranks have equally many for data.
  const auto outputs = run_on({2, 2, 2, 2, 2, 2, 2, 2}, facts, count, "shm,tcp", "all");
  if (skipped(outputs)) GTEST_SKIP() << "this system lets no process have another host name";
  std::vector<std::istringstream> counts;
  for (const std::string& output : outputs) counts.emplace_back(output);
  bool alone = false;
  for (int round = 0; round < kRounds; ++round) {
    bool in_all_hosts = true;
    for (std::size_t host = 0; host < counts.size() / 2; ++host) {
      int first = 0;
      int second = 0;
      counts[2 * host] >> first;
      counts[2 * host + 1] >> second;
      in_all_hosts &= std::abs(first - second) == 5;
    }
    alone |= in_all_hosts;
  }
  EXPECT_TRUE(alone) << fmt::format("sockets in each round: {}", fmt::join(outputs, "| "));
}

}  // namespace
}  // namespace shoal
