// Control between hosts, with the real code of src/progress/overlay on a simulated clock. Everything depends on the seed alone,
// so a seed that fails does so again.
//
// SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, other seeds than the default.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/fault/overlay_scenario.h"
#include "tests/fault/overlay_simulation.h"
#include "tests/seeds.h"

namespace shoal::testing {
namespace {

using namespace std::chrono_literals;
using Duration = OverlaySimulation::Duration;

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kSeeds = 100;
constexpr int kManyHosts = 512;
#else
constexpr std::uint64_t kSeeds = 500;
constexpr int kManyHosts = 4096;
#endif
constexpr int kRanksPerHost = 8;
constexpr std::uint64_t kMostMessages = 30;  // of a host, for a notice and for a verdict

constexpr std::size_t kMostComplaints = 3;  // shown for a seed
constexpr int kMostFailedSeeds = 10;        // the test stops after them

/// A message takes 1 ms between hosts and no time in a host: the time of a flood counts its rounds.
OverlaySimulation::Options in_rounds(int hosts) {
  OverlaySimulation::Options options;
  options.hosts = hosts;
  options.ranks_per_host = kRanksPerHost;
  options.least_delay = options.most_delay = 1ms;
  options.board_delay = 0us;
  options.lost_after = 1h;
  return options;
}

/// How a notice has spread.
struct Spread {
  int unreached = 0;  ///< living ranks
  Duration latest{};
  std::uint64_t most_sent = 0;  ///< messages of one host
};

Spread spread_of_abort(OverlaySimulation& simulation, int origin, std::uint64_t group) {
  simulation.reset_sent();
  const auto start = simulation.now();
  simulation.abort(origin, group);
  simulation.run(30ms);
  Spread spread;
  for (int rank = 0; rank < simulation.ranks(); ++rank) {
    if (!simulation.is_alive(rank)) continue;
    const auto& news = simulation.news(rank);
    const auto found = std::ranges::find_if(news, [&](const auto& each) {
      const auto* notice = std::get_if<Notice>(&each.message);
      return notice != nullptr && notice->group.key == group;
    });
    spread.unreached += found == news.end();
    if (found != news.end()) spread.latest = std::max(spread.latest, found->at - start);
  }
  for (int host = 0; host < simulation.table().hosts(); ++host)
    spread.most_sent = std::max(spread.most_sent, simulation.sent(host));
  return spread;
}

void expect_good(const Spread& spread, const char* when) {
  EXPECT_EQ(spread.unreached, 0) << when;
  EXPECT_LE(spread.latest, 8ms) << when;
  EXPECT_LE(spread.most_sent, kMostMessages) << when;
}

/// Most of the neighbours of `host`, and then the hosts that follow it.
std::vector<int> chosen_victims(int host, int hosts, std::size_t count) {
  std::vector<int> victims = neighbours(host, EndedHosts(hosts));
  for (int next = host + 2; victims.size() < count; ++next) {
    if (std::ranges::find(victims, next % hosts) == victims.end()) victims.push_back(next % hosts);
  }
  victims.resize(count);
  return victims;
}

TEST(OverlayMany, FloodReachesAllRanksInFewRounds) {
  OverlaySimulation simulation(in_rounds(kManyHosts));
  simulation.run(50ms);
  std::size_t most = 0;
  for (int host = 0; host < kManyHosts; ++host) most = std::max(most, simulation.connections(simulation.keeper(host)));
  EXPECT_LE(most, 24U);
  const int origin = kRanksPerHost * (kManyHosts / 3) + 5;
  expect_good(spread_of_abort(simulation, origin, 1), "all hosts live");

  // No host has noticed these ends when the flood begins.
  for (const int host : chosen_victims(origin / kRanksPerHost, kManyHosts, 15)) simulation.switch_off(host);
  expect_good(spread_of_abort(simulation, origin, 2), "15 chosen hosts have ended");
  expect_good(spread_of_abort(simulation, 0, 4), "the same, from another host");
  for (int i = 0; i < kManyHosts / 10; ++i) {
    const auto host = static_cast<int>(simulation.random(kManyHosts));
    if (host != origin / kRanksPerHost) simulation.switch_off(host);
  }
  expect_good(spread_of_abort(simulation, origin, 3), "a tenth of the hosts have ended");
}

TEST(OverlayMany, EndOfJobTakesFewMessagesOfEachHost) {
  OverlaySimulation::Options options;
  options.hosts = 64;
  options.ranks_per_host = kRanksPerHost;
  OverlaySimulation simulation(options);
  simulation.run(50ms);
  simulation.reset_sent();
  for (int rank = 0; rank < simulation.ranks(); ++rank) simulation.farewell(rank, 7, "the same calls");
  simulation.run(100ms);
  std::uint64_t most = 0;
  for (int host = 0; host < options.hosts; ++host) most = std::max(most, simulation.sent(host));
  EXPECT_LE(most, 11U * 8);  // neighbours x a few rounds, where a flood of each host's would take 64 x 11
  for (int rank = 0; rank < simulation.ranks(); ++rank) {
    RankRuns left;
    for (const auto& news : simulation.news(rank)) left.insert(std::get<RankFacts>(news.message).ranks);
    EXPECT_EQ(left.count(), static_cast<std::size_t>(simulation.ranks())) << "rank " << rank;
  }
}

OverlaySimulation::Options of_16_hosts() {
  OverlaySimulation::Options options;
  options.hosts = 16;
  options.ranks_per_host = 4;
  options.seed = 5;
  return options;
}

/// When the last living and running rank has learnt of the death of `dead`, since `start`; nothing: some have not.
std::optional<Duration> all_know(OverlaySimulation& simulation, int dead, OverlaySimulation::Time start) {
  Duration latest{};
  for (int rank = 0; rank < simulation.ranks(); ++rank) {
    if (!simulation.is_alive(rank) || simulation.is_stopped(rank)) continue;
    const auto& news = simulation.news(rank);
    const auto found = std::ranges::find_if(news, [&](const auto& each) {
      const auto* facts = std::get_if<RankFacts>(&each.message);
      return facts != nullptr && facts->kind == RankFacts::Kind::death && facts->ranks.contains(dead);
    });
    if (found == news.end()) return std::nullopt;
    latest = std::max(latest, found->at - start);
  }
  return latest;
}

struct FaultCase {
  std::string name;
  std::vector<int> killed;
  std::vector<int> stopped;
  Duration within;
};

class OverlayFault : public ::testing::TestWithParam<FaultCase> {};

TEST_P(OverlayFault, AllSurvivorsNameDeadRanksInTime) {
  OverlaySimulation simulation(of_16_hosts());
  simulation.run(100ms);
  for (const int rank : GetParam().stopped) simulation.stop(rank);
  const auto start = simulation.now();
  for (const int rank : GetParam().killed) simulation.kill(rank);
  simulation.run(3s);
  for (const int rank : GetParam().killed) {
    const auto time = all_know(simulation, rank, start);
    ASSERT_TRUE(time) << "not all know of the death of rank " << rank;
    EXPECT_LE(*time, GetParam().within) << "rank " << rank;
  }
}

// Hosts have four ranks, whose lowest is the keeper.
INSTANTIATE_TEST_SUITE_P(, OverlayFault,
                         ::testing::Values(FaultCase{"Rank", {21}, {}, 50ms}, FaultCase{"Keeper", {20}, {}, 50ms},
                                           FaultCase{"KeeperAndSuccessor", {20, 21}, {}, 50ms},
                                           FaultCase{"AllRanksOfHost", {20, 21, 22, 23}, {}, 1s},
                                           FaultCase{"ThreeHosts", {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {}, 1s},
                                           FaultCase{"RankBehindStoppedKeeper", {22}, {20}, 1s},
                                           FaultCase{"KeeperBeforeStoppedSuccessor", {20}, {21}, 1s},
                                           FaultCase{"RankBehindTwoStoppedRanks", {23}, {20, 21}, 2s}),
                         [](const auto& tested) { return tested.param.name; });

TEST(OverlayStop, KeeperThatContinuesLeavesItsPlace) {
  OverlaySimulation simulation(of_16_hosts());
  simulation.run(100ms);
  simulation.stop(20);
  simulation.run(1s);
  EXPECT_EQ(simulation.keeper(5), 21);
  simulation.resume(20);
  simulation.abort(22, 1);
  simulation.run(1s);
  EXPECT_EQ(simulation.keeper(5), 21);
  EXPECT_EQ(simulation.connections(20), 0U);
  EXPECT_EQ(simulation.connections(21), neighbours(5, EndedHosts(16)).size());
  for (int rank = 0; rank < simulation.ranks(); ++rank) EXPECT_EQ(simulation.news(rank).size(), 1U) << "rank " << rank;
}

TEST(OverlayStop, HostWithStoppedRanksOnlyIsNotDead) {
  OverlaySimulation simulation(of_16_hosts());
  simulation.run(100ms);
  for (int rank = 20; rank < 24; ++rank) simulation.stop(rank);
  for (int rank = 16; rank < 20; ++rank) simulation.kill(rank);  // its neighbour on the ring needs a new connection to it
  simulation.run(20s);
  for (int rank = 0; rank < 16; ++rank) {
    EXPECT_TRUE(simulation.control(rank).facts().is_present(20)) << "rank " << rank;
    EXPECT_FALSE(simulation.control(rank).facts().is_present(16)) << "rank " << rank;
  }
}

TEST(OverlaySilence, SilentHostIsDeadAfterLostAfter) {
  OverlaySimulation simulation(of_16_hosts());
  simulation.run(100ms);
  simulation.switch_off(5);
  simulation.run(4900ms);
  EXPECT_TRUE(simulation.control(0).facts().is_present(20));
  simulation.run(1500ms);  // lost_after of 5 s, and a connection that is not made in 1 s
  for (int rank = 0; rank < 20; ++rank) EXPECT_FALSE(simulation.control(rank).facts().is_present(20)) << "rank " << rank;
}

TEST(OverlaySeeds, EverySeedInformsAllSurvivorsOnce) {
  const Seeds seeds = wanted_seeds({0, kSeeds});
  std::set<std::string> happened;
  int failed = 0;
  for (std::uint64_t seed = seeds.first; seed < seeds.end() && failed < kMostFailedSeeds; ++seed) {
    OverlayScenario scenario(seed);
    const auto complaints = scenario.run();
    std::string shown;
    for (std::size_t i = 0; i < std::min(complaints.size(), kMostComplaints); ++i) shown += "\n  " + complaints[i];
    EXPECT_EQ(complaints.size(), 0U) << scenario.text() << shown;
    failed += !complaints.empty();
    happened.insert(scenario.happened().begin(), scenario.happened().end());
  }
  if (seeds.count >= 100) {
    EXPECT_EQ(happened.size(), 11U) << "kinds of events";
  }
}

TEST(OverlaySeeds, SeedReplaysExactly) {
  std::uint64_t previous = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    OverlayScenario first(seed);
    OverlayScenario again(seed);
    first.run();
    again.run();
    EXPECT_EQ(first.hash(), again.hash()) << first.text();
    EXPECT_NE(first.hash(), previous) << "seed " << seed << ": the hash does not depend on the seed";
    previous = first.hash();
  }
}

}  // namespace
}  // namespace shoal::testing
