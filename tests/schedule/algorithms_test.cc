// Every algorithm, proven over ranks, shapes of nodes, sizes and roots.

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "src/algorithms/algorithm.h"
#include "src/schedule/verifier.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

std::vector<int> roots(const Collective& collective, int ranks) {
  if (collective.kind != CollectiveKind::broadcast) return {0};
  std::set<int> some{0, ranks / 2, ranks - 1};
  return {some.begin(), some.end()};
}

class EveryAlgorithm : public ::testing::TestWithParam<std::tuple<int, CollectiveKind>> {};

TEST_P(EveryAlgorithm, IsProvenOnEveryShape) {
  const auto [algorithm_index, kind] = GetParam();
  const Algorithm& algorithm = algorithms()[static_cast<std::size_t>(algorithm_index)];
  int proven = 0;
  for (const int ranks : testing::rank_counts()) {
    for (const Topology& topology : testing::topologies(ranks)) {
      for (const std::size_t count : testing::counts(ranks)) {
        Collective collective{kind, kind == CollectiveKind::barrier ? 0 : count, DataType::float32, ReduceOp::sum, 0};
        for (const int root : roots(collective, ranks)) {
          collective.root = root;
          const auto schedule = build_schedule(algorithm, topology, collective);
          if (!schedule.ok()) {
            ASSERT_EQ(schedule.status().code(), StatusCode::unsupported) << schedule.status().to_string();
            continue;
          }
          const auto faults = verify(*schedule);
          ASSERT_TRUE(faults.empty()) << algorithm.name << " " << to_string(collective) << " on " << topology.shape() << ": "
                                      << to_status(faults).to_string();
          ++proven;
        }
      }
    }
  }
  EXPECT_GT(proven, 500);
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<int, CollectiveKind>>& info) {
  const auto [algorithm, kind] = info.param;
  return std::string(algorithms()[static_cast<std::size_t>(algorithm)].name) + "_" + std::string(to_string(kind));
}

/// The pairs that an algorithm claims to support on two ranks; test names say what is proven, and nothing is skipped.
std::vector<std::tuple<int, CollectiveKind>> supported_pairs() {
  std::vector<std::tuple<int, CollectiveKind>> pairs;
  for (int i = 0; i < static_cast<int>(algorithms().size()); ++i) {
    for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
      const Collective collective{static_cast<CollectiveKind>(kind), 1, DataType::float32, ReduceOp::sum, 0};
      const Algorithm& algorithm = algorithms()[static_cast<std::size_t>(i)];
      if (algorithm.supports(Topology::uniform(1, 2), collective).ok()) pairs.emplace_back(i, collective.kind);
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryAlgorithm, ::testing::ValuesIn(supported_pairs()), test_name);

}  // namespace
}  // namespace shoal
