// The engine on the loopback transport in one thread with a simulated clock: everything depends on the seed alone, so a seed
// that fails does so again, step for step. Delays, refusals, late copies, small links, control messages over links or by shared
// memory, ranks that are late, pause, die, abort or disagree: every seed ends with right results or with the error for its
// fault, within the times of src/diagnosis/failures.md.
//
// SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, other seeds than the default. SHOAL_TEST_TRACE=1 shows each
// step.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "tests/fault/simulation_run.h"
#include "tests/fault/simulation_scenario.h"
#include "tests/multiprocess/ranks.h"
#include "tests/seeds.h"

namespace shoal::testing {
namespace {

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kSeeds = 300;
#else
constexpr std::uint64_t kSeeds = 1'000;
#endif
constexpr std::size_t kMostComplaints = 3;      // shown for a seed
constexpr int kMostFailedSeeds = 10;            // the test stops after them
constexpr std::uint64_t kEnoughToSeeAll = 200;  // so many seeds have every fault

Report run_seed(std::uint64_t seed) {
  const Scenario scenario = make_scenario(seed);
  Report report = simulate(scenario);
  std::string complaints;
  for (std::size_t i = 0; i < std::min(report.complaints.size(), kMostComplaints); ++i)
    complaints += "\n  " + report.complaints[i];
  EXPECT_EQ(report.complaints.size(), 0U) << scenario.text() << complaints;
  return report;
}

auto threads() { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); }

/// Counts the effects of each fault over many seeds.
struct Effects {
  std::array<std::uint64_t, kFaultNames.size()> seeds{};
  std::array<std::uint64_t, kFaultNames.size()> began{};
  std::array<std::uint64_t, kFaultNames.size()> failed{};
  std::uint64_t boards = 0;

  void count(const Scenario& scenario, const Report& report) {
    const auto at = static_cast<std::size_t>(scenario.fault);
    boards += scenario.board;
    ++seeds[at];
    began[at] += report.fault_began;
    failed[at] += report.failed_calls > 0;
  }
  /// Most faults take place and fail a call. Otherwise the simulation would test nothing.
  void expect_all() const {
    for (const Fault fault : {Fault::pause, Fault::stop, Fault::kill, Fault::abort})
      EXPECT_GT(began[static_cast<std::size_t>(fault)], seeds[static_cast<std::size_t>(fault)] / 2) << name(fault);
    for (const Fault fault : {Fault::absent, Fault::stop, Fault::kill, Fault::abort, Fault::mismatch})
      EXPECT_GT(failed[static_cast<std::size_t>(fault)], seeds[static_cast<std::size_t>(fault)] / 2) << name(fault);
    for (const Fault fault : {Fault::none, Fault::late}) EXPECT_GT(seeds[static_cast<std::size_t>(fault)], 0U) << name(fault);
    EXPECT_GT(boards, kEnoughToSeeAll / 4) << "control messages by shared memory";
  }
  static std::string_view name(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }
};

TEST(Simulation, EverySeedCompletesOrReportsItsFault) {
  const Seeds seeds = wanted_seeds({0, kSeeds});
  const std::uint64_t parts = seeds.count < 100 ? 1 : 2;
  const auto run_part = [&](std::uint64_t part) {
    const auto threads_before = threads();
    Effects effects;
    int failed = 0;
    for (std::uint64_t seed = seeds.first + part; seed < seeds.end() && failed < kMostFailedSeeds; seed += parts) {
      const Report report = run_seed(seed);
      failed += !report.complaints.empty();
      effects.count(make_scenario(seed), report);
    }
    if (failed == 0 && seeds.count / parts >= kEnoughToSeeAll) effects.expect_all();
    EXPECT_EQ(threads(), threads_before) << "the library has started a thread, which no seed controls";
  };
  if (parts == 1) return run_part(0);
  const auto outcomes = run_ranks(
      static_cast<int>(parts),
      [&](int part, int, const std::string&) {
        run_part(static_cast<std::uint64_t>(part));
        return std::string();
      },
      7200);
  expect_all_well(outcomes);
}

// Seeds that failed once, and why.
TEST(Simulation, FormerlyFailingSeedsPass) {
  for (const std::uint64_t seed : {
           3,       // a rank that could not send to the paused rank 0 named no rank at its deadline
           51,      // the same, with a chain of ranks
           339,     // the other ranks blamed that rank, because it named no rank that it waited for
           7949,    // a rank whose tile had arrived was reported as late, while the fold waited for another rank's tile
           13561,   // a rank that disagreed needed a rank that had left: the error was peer_failed, not mismatch
           2396,    // a call failed before its links had copied its tiles: wrong bytes in another rank's result
           56515,   // a rank that had left, and was not needed, kept another rank awake until the end of its call
           103401,  // a rank left after a different last call: the error said that it left too early, not that the calls differ
           112706,  // the same
           5390,    // in the last call one rank makes another call, over links instead of windows: no rank sent it the mismatch
       })
    run_seed(static_cast<std::uint64_t>(seed));
}

TEST(Simulation, SeedReplaysExactly) {
  std::uint64_t previous = 0;
  for (std::uint64_t seed = 100; seed < 125; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const Report first = simulate(scenario);
    const Report again = simulate(make_scenario(seed));
    EXPECT_EQ(first.hash, again.hash) << scenario.text();
    EXPECT_EQ(first.steps, again.steps) << "seed " << seed;
    EXPECT_EQ(first.time, again.time) << "seed " << seed;
    EXPECT_NE(first.hash, previous) << "seed " << seed << ": the hash does not depend on the seed";
    previous = first.hash;
  }
}

}  // namespace
}  // namespace shoal::testing
