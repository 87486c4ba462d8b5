// The engine on the loopback transport in one thread, on a clock of its own: everything that happens depends on the seed alone,
// so a seed that fails does so again, step for step. Delays, refusals, late copies, little room, ranks that are late, stand
// still, die, abort or disagree: every seed ends with right results or with the error that says what has happened, within the
// times that src/diagnosis/failures.md names.
//
// SHOAL_TEST_SEED=n runs one seed; SHOAL_TEST_SEEDS=n, or first:n, others than the usual ones. SHOAL_TEST_TRACE=1 shows each
// step of them.
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
constexpr std::size_t kMostComplaints = 3;      // that are shown of a seed
constexpr int kMostFailedSeeds = 10;            // after which no more are tried
constexpr std::uint64_t kEnoughToSeeAll = 200;  // seeds among which every fault is

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

/// What a seed's fault has come to, over many seeds.
struct Effects {
  std::array<std::uint64_t, kFaultNames.size()> seeds{};
  std::array<std::uint64_t, kFaultNames.size()> began{};
  std::array<std::uint64_t, kFaultNames.size()> failed{};

  void count(Fault fault, const Report& report) {
    const auto at = static_cast<std::size_t>(fault);
    ++seeds[at];
    began[at] += report.fault_began;
    failed[at] += report.failed_calls > 0;
  }
  /// Most of the faults do happen, and somebody sees it: a simulation in which everything goes well would show nothing.
  void expect_all() const {
    for (const Fault fault : {Fault::pause, Fault::stop, Fault::kill, Fault::abort})
      EXPECT_GT(began[static_cast<std::size_t>(fault)], seeds[static_cast<std::size_t>(fault)] / 2) << name(fault);
    for (const Fault fault : {Fault::absent, Fault::stop, Fault::kill, Fault::abort, Fault::mismatch})
      EXPECT_GT(failed[static_cast<std::size_t>(fault)], seeds[static_cast<std::size_t>(fault)] / 2) << name(fault);
    for (const Fault fault : {Fault::none, Fault::late}) EXPECT_GT(seeds[static_cast<std::size_t>(fault)], 0U) << name(fault);
  }
  static std::string_view name(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }
};

TEST(Simulation, EverySeedEndsRightOrWithItsError) {
  const Seeds seeds = wanted_seeds({0, kSeeds});
  const std::uint64_t parts = seeds.count < 100 ? 1 : 2;
  const auto run_part = [&](std::uint64_t part) {
    const auto threads_before = threads();
    Effects effects;
    int failed = 0;
    for (std::uint64_t seed = seeds.first + part; seed < seeds.end() && failed < kMostFailedSeeds; seed += parts) {
      const Report report = run_seed(seed);
      failed += !report.complaints.empty();
      effects.count(make_scenario(seed).fault, report);
    }
    if (failed == 0 && seeds.count / parts >= kEnoughToSeeAll) effects.expect_all();
    EXPECT_EQ(threads(), threads_before) << "the library has started a thread, whose steps no seed decides";
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

// Once.
TEST(Simulation, SeedsThatHaveFailedEndRight) {
  for (const std::uint64_t seed : {
           3,       // a rank that could not send named nobody at its deadline: rank 0 stood still and took nothing
           51,      // the same, with a chain behind it
           339,     // and others took that rank, which waited for nobody that it named, for the late one
           7949,    // a rank whose tile had come was called late, where the fold waited for another one's
           13561,   // a rank that disagrees needs one that has left: its end was told, not about what two disagree
           2396,    // a call failed before its links had copied what they had taken of it: wrong bytes in another rank's result
           56515,   // a rank that had left, and was needed no more, kept another one awake until the end of its call
           103401,  // who left after another last call was said to have left too early, not to have made another call
           112706,  // the same
           5390,    // the last call of all, and one rank makes another, on the links instead of in the windows: nobody tells it
       })
    run_seed(static_cast<std::uint64_t>(seed));
}

TEST(Simulation, ASeedReplaysExactly) {
  std::uint64_t previous = 0;
  for (std::uint64_t seed = 100; seed < 125; ++seed) {
    const Scenario scenario = make_scenario(seed);
    const Report first = simulate(scenario);
    const Report again = simulate(make_scenario(seed));
    EXPECT_EQ(first.hash, again.hash) << scenario.text();
    EXPECT_EQ(first.steps, again.steps) << "seed " << seed;
    EXPECT_EQ(first.time, again.time) << "seed " << seed;
    EXPECT_NE(first.hash, previous) << "seed " << seed << ": the hash says nothing";
    previous = first.hash;
  }
}

}  // namespace
}  // namespace shoal::testing
