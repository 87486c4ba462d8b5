// The Selector predicts only the algorithms that it can choose, and chooses as if it had predicted all.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "src/selector/predict.h"
#include "src/selector/selector.h"
#include "tests/schedule/machines.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

using testing::kShapes;
using testing::measured;

constexpr std::array kAllKinds{CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
                               CollectiveKind::broadcast,  CollectiveKind::reduce,         CollectiveKind::gather,
                               CollectiveKind::scatter,    CollectiveKind::all_to_all,     CollectiveKind::barrier};

/// The shapes of small jobs and `more`.
std::vector<std::vector<int>> shapes_and(const std::vector<std::vector<int>>& more) {
  std::vector<std::vector<int>> shapes = kShapes;
  shapes.insert(shapes.end(), more.begin(), more.end());
  return shapes;
}

/// Shapes with costs, and calls: all kinds, with a few sizes.
void for_each_call(const std::vector<std::vector<int>>& shapes, const std::vector<std::size_t>& sizes,
                   const std::function<void(const Topology&, const Collective&)>& check) {
  std::mt19937 random(39);
  for (const std::vector<int>& shape : shapes) {
    Topology topology = measured(shape, shape.size() % 2 == 0 ? 0.94 : 23.5, random);
    LinkCost& wire = topology.cost[static_cast<std::size_t>(LinkClass::network)];
    if (shape.size() % 4 == 0) wire.burst_us_per_byte = wire.us_per_byte / 20;
    for (const CollectiveKind kind : kAllKinds) {
      for (const std::size_t bytes : sizes) {
        check(topology, {kind, kind == CollectiveKind::barrier ? 0 : bytes / 4, DataType::float32, ReduceOp::sum, 0});
      }
    }
  }
}

void expect_choice_of_all(const Topology& topology, const Collective& collective) {
  const auto pruned = select(topology, collective, {}, nullptr, ChoiceCosts::exact);
  const auto full = explain(topology, collective, {}, nullptr, ChoiceCosts::exact);  // predicts every algorithm
  ASSERT_TRUE(pruned.ok() && full.ok());
  EXPECT_EQ(pruned->algorithm, full->choice.algorithm)
      << pruned->algorithm->name << " " << to_string(collective) << " on " << topology.shape();
  EXPECT_EQ(pruned->predicted_us, full->choice.predicted_us);
}

TEST(SelectorPruning, LowerBoundsHold) {
  int close = 0;
  for_each_call(shapes_and({{5, 2, 4}, {48}, std::vector<int>(24, 2), std::vector<int>(20, 4)}), {64, 16 << 10, 4 << 20},
                [&](const Topology& topology, const Collective& collective) {
                  for (const Algorithm& algorithm : algorithms()) {
                    if (!algorithm.supports(topology, collective).ok()) continue;
                    const double least = least_us(algorithm, topology, collective);
                    const double predicted = predict_us(algorithm, topology, collective);
                    EXPECT_LE(least, predicted * (1 + 1e-9))
                        << algorithm.name << " " << collective.count << " on " << topology.shape();
                    close += static_cast<int>(least > predicted / 2);
                  }
                });
  EXPECT_GT(close, 200) << "the bounds are so low that they exclude nothing";
}

/// The estimate from all ranks of the nodes that represent equal ones.
double estimate_of_all(const Algorithm& algorithm, const RanksByNode& nodes, const Collective& collective,
                       const CostModel& costs) {
  double most_us = 0;
  for (const std::size_t node : {std::size_t{0}, std::size_t{1}, nodes.nodes() / 2, nodes.nodes() - 1}) {
    std::vector<SizedProgram> programs;
    Demand demand;
    for (const int rank : nodes[node]) {
      programs.emplace_back(algorithm.build(nodes, collective, rank), nodes, collective);
      demand.add_ranks(demand_of(programs.back(), costs), 1);
    }
    std::vector<EqualRanks> ranks;
    for (const SizedProgram& program : programs) ranks.push_back({&program});
    most_us = std::max(most_us, node_us(ranks, demand, costs));
  }
  return most_us;
}

TEST(SelectorPruning, WhatIsLeftOutHasTheSameEstimate) {
  for_each_call(
      {std::vector<int>(32, 4), std::vector<int>(33, 3), std::vector<int>(17, 8), std::vector<int>(64, 1)},
      {64, 16 << 10, 4 << 20}, [&](const Topology& topology, const Collective& collective) {
        const RanksByNode nodes(topology);
        const CostModel costs(topology);
        for (const Algorithm& algorithm : algorithms()) {
          if (!algorithm.supports(topology, collective).ok() || algorithm.hidden_hops != nullptr) continue;
          if (has_root(collective.kind)) continue;  // the root's node represents only itself
          EXPECT_DOUBLE_EQ(estimate_us(algorithm, topology, collective), estimate_of_all(algorithm, nodes, collective, costs))
              << algorithm.name << " " << collective.count << " on " << topology.shape();
        }
      });
}

TEST(SelectorPruning, LimitedPredictionsAreExact) {
  int ended = 0;
  for_each_call(shapes_and({{5, 2, 4}, {20, 1, 9}, std::vector<int>(24, 2)}), {64, 16 << 10, 1 << 20},
                [&](const Topology& topology, const Collective& collective) {
                  const RanksByNode nodes(topology);
                  const CallCosts costs(topology);
                  for (const Algorithm& algorithm : algorithms()) {
                    if (!algorithm.supports(topology, collective).ok()) continue;
                    Prediction prediction(algorithm, nodes, collective, true);
                    const double us = prediction.us(costs);
                    EXPECT_EQ(prediction.us_up_to(us, costs), us) << algorithm.name << " on " << topology.shape();
                    EXPECT_EQ(prediction.us_up_to(std::nextafter(us, 0), costs), std::nullopt);
                    Prediction fresh(algorithm, nodes, collective, true);
                    ended += static_cast<int>(us > 0 && !fresh.us_up_to(us / 2, costs));
                  }
                });
  EXPECT_GT(ended, 500);
}

TEST(SelectorPruning, ChoosesAsIfAllWerePredicted) {
  for_each_call(
      shapes_and({{5, 2, 4}, {32}, {12, 5, 7, 1}, std::vector<int>(16, 2), std::vector<int>(24, 1), std::vector<int>(9, 3)}),
      {4, 4 << 10, 256 << 10, 1 << 20, 64 << 20}, expect_choice_of_all);
}

TEST(SelectorPruning, ChoosesAsIfAllWerePredictedLarge) {
  std::mt19937 random(2);
  for (const std::vector<int>& shape : {std::vector<int>(32, 8),
                                        std::vector<int>(33, 4),
                                        std::vector<int>(100, 1),
                                        {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 4}}) {
    for (const double gbit_s : {0.94, 23.5, 190.0}) {
      Topology topology = measured(shape, gbit_s, random);
      LinkCost& wire = topology.cost[static_cast<std::size_t>(LinkClass::network)];
      if (gbit_s < 1) wire.burst_us_per_byte = wire.us_per_byte / 20;
      for (const CollectiveKind kind :
           {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter}) {
        for (const std::size_t bytes : {4UL, 64UL << 10, 1UL << 20})
          expect_choice_of_all(topology, {kind, bytes / 4, DataType::float32, ReduceOp::sum, 0});
      }
    }
  }
}

TEST(SelectorPruning, ChoosesAsIfAllWerePredictedUneven) {
  std::mt19937 random(3);
  for (const std::vector<int>& shape : {std::vector<int>{5, 2, 4}, std::vector<int>(20, 2)}) {
    const Topology topology = measured(shape, 9.4, random);
    for (const std::vector<std::size_t>& counts : testing::uneven_counts(topology.ranks())) {
      for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::reduce_scatter})
        expect_choice_of_all(topology, testing::with_counts({kind, 0, DataType::float32, ReduceOp::sum, 0}, counts));
    }
  }
}

}  // namespace
}  // namespace shoal
