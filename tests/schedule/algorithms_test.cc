// Every algorithm, proven over ranks, shapes of nodes, sizes and roots. algorithms_long_test.cc has the larger ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "src/algorithms/algorithm.h"
#include "tests/schedule/prove.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

std::vector<int> roots(const Collective& collective, int ranks) {
  if (!has_root(collective.kind)) return {0};
  if (ranks <= 8) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::set<int> some{0, 1, ranks / 2, ranks - 1};
  return {some.begin(), some.end()};
}

std::vector<std::size_t> counts_for(CollectiveKind kind, int ranks) {
  if (kind == CollectiveKind::barrier) return {0};
  // All sizes of shares are cut in the same way.
  if (deals_in_shares(kind)) return {0, 1, 1009};
  return testing::counts(ranks);
}

class EveryAlgorithm : public ::testing::TestWithParam<std::tuple<int, CollectiveKind>> {};

TEST_P(EveryAlgorithm, IsProvenOnEveryShape) {
  const auto [algorithm_index, kind] = GetParam();
  const Algorithm& algorithm = algorithms()[static_cast<std::size_t>(algorithm_index)];
  int proven = 0;
  for (const int ranks : testing::rank_counts()) {
    for (const Topology& topology : testing::topologies(ranks)) {
      for (const std::size_t count : counts_for(kind, ranks)) {
        Collective collective = testing::average(kind, count);
        for (collective.root = 0; const int root : roots(collective, ranks)) {
          collective.root = root;
          proven += testing::prove(algorithm, topology, collective) ? 1 : 0;
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
  EXPECT_GT(proven, 80);
}

TEST_P(EveryAlgorithm, IsProvenWithUnevenShares) {
  const auto [algorithm_index, kind] = GetParam();
  if (!deals_in_shares(kind)) return;
  const Algorithm& algorithm = algorithms()[static_cast<std::size_t>(algorithm_index)];
  const bool exchange = kind == CollectiveKind::all_to_all;
  int proven = 0;
  for (const int ranks : testing::rank_counts()) {
    if (ranks > 24) continue;
    for (const Topology& topology : testing::topologies(ranks)) {
      for (const auto& counts : testing::uneven_counts(ranks)) {
        Collective collective = testing::with_counts(testing::average(kind, 0), counts);
        for (const int root : roots(collective, ranks)) {
          collective.root = root;
          const auto of_rank = exchange ? testing::exchange_counts(counts) : std::vector<std::vector<std::size_t>>();
          proven += testing::prove(algorithm, topology, collective, of_rank) ? 1 : 0;
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
  EXPECT_TRUE(proven > 80 || algorithm.name == "bruck") << proven;
}

std::string test_name(const ::testing::TestParamInfo<std::tuple<int, CollectiveKind>>& info) {
  const auto [algorithm, kind] = info.param;
  std::string name(algorithms()[static_cast<std::size_t>(algorithm)].name);
  std::ranges::replace_if(
      name, [](char c) { return c == '(' || c == ')' || c == ','; }, '_');
  return name + "_" + std::string(to_string(kind));
}

/// The pairs of algorithm and collective that are supported on two ranks, so that no test is skipped.
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

TEST(Schedules, CompositionsOfTwoStagesAreProven) { testing::prove_compositions({1, 2, 3, 6, 9, 12}); }

TEST(Schedules, AlgorithmsAreFoundByEveryName) {
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
