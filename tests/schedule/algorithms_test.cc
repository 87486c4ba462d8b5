// Every algorithm, proven over ranks, shapes of nodes, sizes and roots.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
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
  std::string name(algorithms()[static_cast<std::size_t>(algorithm)].name);
  std::ranges::replace_if(
      name, [](char c) { return c == '(' || c == ')'; }, '_');
  return name + "_" + std::string(to_string(kind));
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

TEST(Schedules, AreProvenOn256Ranks) {
  const std::vector<Topology> shapes{Topology::uniform(1, 256), Topology::uniform(256, 1), Topology::uniform(32, 8),
                                     Topology::ragged({100, 1, 64, 31, 60}), testing::round_robin(256, 24)};
  for (const Algorithm& algorithm : algorithms()) {
    for (const Topology& topology : shapes) {
      for (const auto& [kind, count] : {std::pair{CollectiveKind::all_reduce, std::size_t{1009}},
                                        {CollectiveKind::all_gather, std::size_t{7}},
                                        {CollectiveKind::broadcast, std::size_t{7}},
                                        {CollectiveKind::barrier, std::size_t{0}}}) {
        const Collective collective{kind, count, DataType::float32, ReduceOp::sum, 0};
        if (!algorithm.supports(topology, collective).ok() || repeats_another(algorithm, topology)) continue;
        const auto schedule = build_schedule(algorithm, topology, collective);
        ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
        const auto faults = verify(*schedule);
        EXPECT_TRUE(faults.empty()) << algorithm.name << " " << to_string(collective) << " on " << topology.shape() << ": "
                                    << to_status(faults).to_string();
      }
    }
  }
}

TEST(Schedules, ComposedOfAnyTwoStagesAreProven) {
  for (const std::string inside : {"direct", "ring", "circulant", "recursive_halving"}) {
    for (const std::string outside :
         {"direct", "ring", "circulant", "recursive_halving", "recursive_doubling", "one_shot", "tree"}) {
      const auto algorithm = find_algorithm("hierarchical(" + inside + "," + outside + ")");
      ASSERT_TRUE(algorithm.ok()) << algorithm.status().to_string();
      for (const int ranks : {1, 2, 3, 6, 9, 12, 17, 24}) {
        for (const Topology& topology : testing::topologies(ranks)) {
          for (const std::size_t count : testing::counts(ranks)) {
            const Collective collective{CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0};
            const auto schedule = build_schedule(**algorithm, topology, collective);
            ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
            const auto faults = verify(*schedule);
            ASSERT_TRUE(faults.empty()) << (*algorithm)->name << " " << to_string(collective) << " on " << topology.shape()
                                        << ": " << to_status(faults).to_string();
          }
        }
      }
    }
  }
}

TEST(Schedules, AreFoundByEveryName) {
  const auto name_of = [](std::string_view name) {
    const auto found = find_algorithm(name);
    return found.ok() ? std::string((*found)->name) : found.status().to_string();
  };
  EXPECT_EQ(name_of("two_shot"), "direct");
  EXPECT_EQ(name_of("hierarchical(direct,ring)"), "hierarchical(ring)");
  EXPECT_EQ(name_of("hierarchical(two_shot,two_shot)"), "hierarchical(direct)");
  EXPECT_EQ(name_of("hierarchical(circulant,tree)"), "hierarchical(circulant,tree)");
  for (const std::string_view wrong :
       {"", "hierarchical()", "hierarchical(tree,ring)", "hierarchical(ring,ring,ring)", "direct "}) {
    EXPECT_EQ(find_algorithm(wrong).status().code(), StatusCode::not_found) << wrong;
  }
  for (const Algorithm& algorithm : algorithms()) EXPECT_EQ(name_of(algorithm.name), algorithm.name);
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryAlgorithm, ::testing::ValuesIn(supported_pairs()), test_name);

}  // namespace
}  // namespace shoal
