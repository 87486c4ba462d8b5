// Partitions of pipelines whose ranks have several stages, where bytes count: against all partitions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "src/pipeline/partitioner.h"
#include "src/pipeline/rank_search.h"
#include "tests/mentions.h"
#include "tests/seeds.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using testing::Mentions;

constexpr std::uint64_t kRankCases = kRandomCases / 5;

Profile random_chain(Random& random, int units, std::int64_t most) {
  Profile profile;
  for (int unit = 0; unit < units; ++unit) {
    profile.units.push_back({"unit" + std::to_string(unit),
                             static_cast<double>(draw(random, 0, most)),
                             static_cast<double>(draw(random, 0, 2 * most)),
                             draw(random, 0, 4 * most),
                             draw(random, 0, 1),
                             draw(random, 0, 4 * most),
                             draw(random, 0, 4 * most),
                             {},
                             draw(random, 0, 8 * most)});
  }
  return profile;
}

struct Candidate {
  Wide time = 0;
  std::int64_t bytes = 0;  // of the largest rank
  std::int64_t cut_bytes = 0;
  std::vector<int> cuts;
};

/// Of all lists of cuts in rising order.
std::vector<Candidate> all_candidates(const StageCosts& costs, int ranks) {
  std::vector<Candidate> found;
  std::vector<bool> is_cut(static_cast<std::size_t>(costs.units() - 1));
  std::fill_n(is_cut.begin(), costs.stages() - 1, true);
  do {
    Candidate each;
    for (int unit = 1; unit < costs.units(); ++unit) {
      if (is_cut[static_cast<std::size_t>(unit - 1)]) each.cuts.push_back(unit);
    }
    std::vector<std::int64_t> bytes;
    int first = 0;
    for (int stage = 0; stage < costs.stages(); ++stage) {
      const int end = stage + 1 < costs.stages() ? each.cuts[static_cast<std::size_t>(stage)] : costs.units();
      const StageCost cost = costs.cost(stage, first, end);
      each.time = std::max(each.time, cost.time);
      each.cut_bytes += costs.bytes_before(end);
      bytes.push_back(cost.bytes);
      first = end;
    }
    each.bytes = std::ranges::max(bytes_of_ranks(bytes, ranks));
    found.push_back(each);
  } while (std::prev_permutation(is_cut.begin(), is_cut.end()));
  return found;
}

TEST(PipelineRanks, BytesOfStagesAddUp) {
  EXPECT_THAT(bytes_of_ranks({1, 20, 300, 4000}, 2), ::testing::ElementsAre(301, 4020));
  EXPECT_THAT(bytes_of_ranks({1, 20}, 2), ::testing::ElementsAre(1, 20));
}

TEST(PipelineRanks, EveryRandomChainHasTheBestAnswer) {
  const auto seeds = testing::wanted_seeds({0, kRankCases});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "SHOAL_TEST_SEED=" << seed);
    Random random(seed);
    PartitionRequest request;
    const auto ranks = static_cast<int>(draw(random, 1, 3));
    const auto chunks = static_cast<int>(draw(random, 2, ranks == 1 ? 4 : 2));
    request.rules.shape = {ScheduleKind::virtual_stages, ranks, chunks, ranks * static_cast<int>(draw(random, 1, 4)), {}};
    request.rules.overlaps = draw(random, 0, 1) == 1;
    request.rules.recompute = draw(random, 0, 3) == 0 ? Recompute::all : Recompute::none;
    if (draw(random, 0, 3) == 0 && request.rules.recompute == Recompute::none) {
      request.rules.recompute_units =
          draw(random, 0, 1) == 0 ? RecomputeUnits{.rule = Recompute::all} : RecomputeUnits{.list = {"0..1", "3"}};
    }
    request.rules.link = {static_cast<double>(draw(random, 0, 3)), 2.0};
    request.objective = draw(random, 0, 1) == 0 ? Objective::memory : Objective::speed;
    const auto units = static_cast<int>(draw(random, std::max(ranks * chunks, 4), 10));
    const Profile profile = random_chain(random, units, draw(random, 0, 1) == 0 ? 2 : 5000);  // few values make ties
    const auto costs = StageCosts::create(profile, request.rules);
    ASSERT_TRUE(costs.ok()) << costs.status().to_string();
    const std::vector<Candidate> all = all_candidates(*costs, ranks);
    const std::int64_t fewest = std::ranges::min(all, {}, &Candidate::bytes).bytes;
    if (request.objective == Objective::speed || draw(random, 0, 2) == 0)
      request.memory_limit_bytes = fewest + draw(random, -1, 3) * (1 + fewest / 20);
    const auto key = [&](const Candidate& each) {
      const auto bytes = static_cast<Wide>(each.bytes);
      const bool by_bytes = request.objective == Objective::memory;
      return std::tuple(by_bytes ? bytes : each.time, by_bytes ? each.time : bytes, each.cut_bytes, each.cuts);
    };
    std::optional<Candidate> best;
    for (const Candidate& each : all) {
      if (request.memory_limit_bytes && each.bytes > *request.memory_limit_bytes) continue;
      if (!best || key(each) < key(*best)) best = each;
    }
    const auto found = partition(profile, request);
    if (!best) {
      ASSERT_EQ(found.status().code(), StatusCode::invalid_argument);
      ASSERT_THAT(found.status().message(), Mentions(std::to_string(fewest), "rank"));
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->cuts(), best->cuts);
    if (request.objective == Objective::memory) {
      ASSERT_EQ(found->value, static_cast<double>(best->bytes));
    }
  }
}

TEST(PipelineRanks, ADeepModelIsCutInTime) {
  Random random(121);
  const Profile profile = random_chain(random, 64, 900);
  for (const int ranks : {2, 4}) {
    PartitionRequest request;
    request.rules.shape = {ScheduleKind::virtual_stages, ranks, 2, 8, {}};
    request.objective = Objective::memory;
    const auto least = partition(profile, request);
    ASSERT_TRUE(least.ok()) << least.status().to_string();
    EXPECT_LT(least->evaluations, kMostRankEvaluations);
    request.objective = Objective::speed;
    request.memory_limit_bytes = static_cast<std::int64_t>(least->value * 1.1);
    const auto fast = partition(profile, request);
    ASSERT_TRUE(fast.ok()) << fast.status().to_string();
    EXPECT_LT(fast->evaluations, kMostRankEvaluations);
    std::printf("%d ranks: %lld and %lld evaluations\n", ranks, static_cast<long long>(least->evaluations),
                static_cast<long long>(fast->evaluations));
  }
}

TEST(PipelineRanks, GivenCutsMeetTheLimitOfARank) {
  PartitionRequest request;
  request.rules.shape = {ScheduleKind::virtual_stages, 2, 2, 4, {}};
  const Profile profile = worked_example();
  const auto found = partition_at(profile, request, {1, 3, 4});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  const std::int64_t of_rank_0 = found->stages[0].bytes + found->stages[2].bytes;
  const std::int64_t of_rank_1 = found->stages[1].bytes + found->stages[3].bytes;
  EXPECT_EQ(found->value, static_cast<double>(std::max(of_rank_0, of_rank_1)));
  request.memory_limit_bytes = std::max(of_rank_0, of_rank_1);
  EXPECT_TRUE(partition_at(profile, request, {1, 3, 4}).ok());
  --*request.memory_limit_bytes;
  const Status status = partition_at(profile, request, {1, 3, 4}).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), Mentions("rank", std::to_string(std::max(of_rank_0, of_rank_1))));
}

}  // namespace
}  // namespace shoal::pipeline
