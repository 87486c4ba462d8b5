// The Simulator, the predictions made from it, and the Selector.

#include "src/selector/selector.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/selector/predict.h"
#include "src/simulate/simulator.h"
#include "tests/mentions.h"
#include "tests/schedule/machines.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

using testing::all_reduce;
using testing::kShapes;
using testing::measured;

using testing::Mentions;

Simulation simulation(std::string_view algorithm, const Topology& topology, const Collective& collective) {
  const auto schedule = build_schedule(**find_algorithm(algorithm), topology, collective);
  EXPECT_TRUE(schedule.ok());
  auto result = simulate(*schedule);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return *std::move(result);
}

Topology plain(int nodes, int ranks) {
  Topology topology = Topology::uniform(nodes, ranks);
  topology.cost = {LinkCost{0, 0}, LinkCost{1, 1e-3}, LinkCost{100, 1e-2}};
  topology.reduce_us_per_byte = 0;
  return topology;
}

// Slow-down of a wire if `flows` senders send to one rank at the same time.
double slowdown_of(int flows) { return 1 + CostModel::kFlowShare * (flows - 1); }

TEST(Simulator, MatchesTheTextbookTimes) {
  const std::size_t bytes = 48 << 20;
  const double wire_us = static_cast<double>(bytes) * 1e-2;
  const Topology four = plain(4, 1);
  // 2 (p - 1) / p of the message passes every port; latencies are negligible.
  EXPECT_NEAR(simulation("ring", four, all_reduce(bytes)).total_us, 1.5 * wire_us, 0.01 * wire_us);
  EXPECT_NEAR(simulation("direct", four, all_reduce(bytes)).total_us, 1.5 * wire_us * slowdown_of(3), 0.01 * wire_us);
  EXPECT_NEAR(simulation("one_shot", four, all_reduce(bytes)).total_us, 3 * wire_us * slowdown_of(3), 0.01 * wire_us);
  EXPECT_NEAR(simulation("recursive_doubling", four, all_reduce(bytes)).total_us, 2 * wire_us * slowdown_of(2), 0.01 * wire_us);
  // A chain takes the time of one hop, a tree that of one hop per child of the root.
  const Collective broadcast{CollectiveKind::broadcast, bytes / 4, DataType::float32, ReduceOp::sum, 0};
  EXPECT_NEAR(simulation("chain", four, broadcast).total_us, wire_us, 0.01 * wire_us);
  EXPECT_NEAR(simulation("tree", four, broadcast).total_us, 2 * wire_us, 0.01 * wire_us);
  // Small messages: one latency per hop.
  EXPECT_NEAR(simulation("recursive_doubling", four, all_reduce(4)).total_us, 200, 1);
  EXPECT_NEAR(simulation("ring", four, all_reduce(4)).total_us, 600, 1);
  EXPECT_NEAR(simulation("one_shot", four, all_reduce(4)).total_us, 150, 1);
}

TEST(Simulator, CountsBytesByLinkClass) {
  const Simulation result = simulation("hierarchical", plain(2, 4), all_reduce(8 << 10));
  EXPECT_EQ(result.bytes[static_cast<std::size_t>(LinkClass::network)],
            2U * (8 << 10));  // each node sends 2 (N - 1) / N of the message
  EXPECT_EQ(result.bytes[static_cast<std::size_t>(LinkClass::shared_memory)], 2U * 2 * 3 * (8 << 10));
  EXPECT_EQ(result.bytes[static_cast<std::size_t>(LinkClass::local)], 0U);
  EXPECT_EQ(result.rank_us.size(), 8U);
  for (const double us : result.rank_us) EXPECT_GT(us, 200);
}

TEST(Simulator, SharesTheWireOfANode) {
  // Flat direct: all four ranks of a node send 4/8 of the message twice over one wire.
  const std::size_t bytes = 16 << 20;
  const double wire_us = static_cast<double>(bytes) * 1e-2;
  EXPECT_NEAR(simulation("direct", plain(2, 4), all_reduce(bytes)).total_us, 4 * wire_us * slowdown_of(4), 0.02 * wire_us);
  EXPECT_NEAR(simulation("hierarchical", plain(2, 4), all_reduce(bytes)).total_us, wire_us, 0.1 * wire_us);
}

TEST(Simulator, SlowsDownWithTooFewCores) {
  Topology crowded = plain(1, 4);
  crowded.cores_per_node = 2;
  const double alone = simulation("direct", plain(1, 4), all_reduce(4 << 20)).total_us;
  EXPECT_NEAR(simulation("direct", crowded, all_reduce(4 << 20)).total_us, 2 * alone, 0.01 * alone);
}

TEST(Simulator, ReportsDeadlock) {
  auto schedule = build_schedule(**find_algorithm("ring"), plain(1, 3), all_reduce(1 << 10));
  ASSERT_TRUE(schedule.ok());
  schedule->programs[1].steps.pop_back();
  EXPECT_EQ(simulate(*schedule).status().code(), StatusCode::internal);
}

TEST(Predict, EstimateAgreesWithTheSimulation) {
  // The estimate replaces the simulation for many ranks, so the two are compared where both are cheap.
  for (const Topology& topology :
       {Topology::uniform(1, 8), Topology::uniform(4, 4), Topology::uniform(16, 1), Topology::ragged({5, 2, 4}),
        Topology::uniform(1, 12), Topology::uniform(6, 2), Topology::uniform(24, 1)}) {
    for (const std::string_view name :
         {"one_shot", "direct", "hierarchical", "recursive_doubling", "ring", "circulant", "recursive_halving", "tree",
          "hierarchical(circulant)", "hierarchical(recursive_halving)", "hierarchical(recursive_doubling)",
          "hierarchical(tree)", "hierarchical(leader,recursive_doubling)"}) {
      for (const std::size_t bytes : {8UL, 4096UL, 1UL << 20, 16UL << 20}) {
        const double simulated = simulation(name, topology, all_reduce(bytes)).total_us;
        const double estimated = estimate_us(**find_algorithm(name), topology, all_reduce(bytes));
        EXPECT_GT(estimated, 0.5 * simulated) << name << " " << bytes << " on " << topology.shape();
        EXPECT_LT(estimated, 2 * simulated) << name << " " << bytes << " on " << topology.shape();
      }
    }
  }
}

/// The choice by exact costs, without classes.
std::string_view chosen(const Topology& topology, const Collective& collective) {
  const auto choice = select(topology, collective, {}, nullptr, ChoiceCosts::exact);
  EXPECT_TRUE(choice.ok()) << choice.status().to_string();
  return choice.ok() ? choice->algorithm->name : "";
}

/// Nodes with a high cost per message: emulated ones that share two cores.
Topology busy_nodes(int nodes) {
  Topology topology = Topology::uniform(nodes, 1);
  topology.cost[static_cast<std::size_t>(LinkClass::network)] = {25, 8.5e-3, 12};
  return topology;
}

TEST(Selector, BusyNodesPreferPairwiseExchanges) {
  const auto shares = [](CollectiveKind kind) { return Collective{kind, 64, DataType::float32, ReduceOp::sum, 0}; };
  EXPECT_EQ(chosen(busy_nodes(4), shares(CollectiveKind::all_gather)), "recursive_doubling");
  EXPECT_EQ(chosen(busy_nodes(4), shares(CollectiveKind::reduce_scatter)), "recursive_halving");
  EXPECT_EQ(chosen(busy_nodes(4), shares(CollectiveKind::all_to_all)), "direct") << "one hop";
  EXPECT_EQ(chosen(Topology::uniform(4, 1), shares(CollectiveKind::all_gather)), "direct") << "latency dominates";
}

TEST(Selector, PrefersLessBusyOfNearlyEqualAlgorithms) {
  Topology four = busy_nodes(4);
  four.cost[static_cast<std::size_t>(LinkClass::network)] = {30, 8.5e-3, 7.5};
  const auto explanation = explain(four, all_reduce(16 << 10), {}, nullptr, ChoiceCosts::exact);
  ASSERT_TRUE(explanation.ok());
  const auto time_of = [&](std::string_view name) {
    const auto found = std::ranges::find(explanation->candidates, name, [](const Candidate& c) { return c.algorithm->name; });
    return found->predicted_us;
  };
  EXPECT_LT(time_of("recursive_doubling"), time_of("recursive_halving"));
  EXPECT_LT(time_of("recursive_halving"), 1.05 * time_of("recursive_doubling"));
  EXPECT_EQ(explanation->choice.algorithm->name, "recursive_halving") << "three quarters of the bytes";
}

TEST(Selector, TokenBucketHidesByteCostUntilEmpty) {
  constexpr auto kWire = static_cast<std::size_t>(LinkClass::network);
  Topology steady = busy_nodes(4);
  steady.cost[kWire] = {35, 8.5e-3, 9};
  Topology shaped = steady;
  shaped.cost[kWire].burst_us_per_byte = 1e-3;
  const Collective small = all_reduce(16 << 10);
  EXPECT_EQ(chosen(steady, small), "recursive_doubling") << "half the messages";
  EXPECT_EQ(chosen(shaped, small), "recursive_halving") << "three quarters of the tokens";
  // Consecutive calls wait for the tokens of all their bytes, which is not work.
  const Algorithm& doubling = **find_algorithm("recursive_doubling");
  const double tokens_us = 2 * (16 << 10) * 8.5e-3;
  EXPECT_GE(predict_us(doubling, shaped, small), tokens_us);
  EXPECT_LT(predict_us(doubling, shaped, small), predict_us(doubling, steady, small));
  EXPECT_LT(work_us(doubling, shaped, small), tokens_us);
  // Beyond the measured size of the bucket, predictions are those without it.
  for (const Algorithm& algorithm : algorithms()) {
    if (!algorithm.supports(shaped, all_reduce(1 << 20)).ok()) continue;
    EXPECT_EQ(predict_us(algorithm, shaped, all_reduce(1 << 20)), predict_us(algorithm, steady, all_reduce(1 << 20)))
        << algorithm.name;
  }
}

TEST(Selector, MessagesBeyondAPacketCostAcknowledgement) {
  const Topology two = busy_nodes(2);
  const double overhead_us = two.cost[static_cast<std::size_t>(LinkClass::network)].overhead();
  const Algorithm& doubling = **find_algorithm("recursive_doubling");
  EXPECT_GT(predict_us(doubling, two, all_reduce(1452)), predict_us(doubling, two, all_reduce(1448)) + 2 * overhead_us);
}

TEST(Selector, OneWayCollectivesAreRatedInSequence) {
  EXPECT_EQ(chosen(busy_nodes(4), {CollectiveKind::scatter, 16, DataType::float32, ReduceOp::sum, 0}), "tree");
  for (const CollectiveKind kind : {CollectiveKind::broadcast, CollectiveKind::reduce}) {
    Collective collective{kind, 1024, DataType::float32, ReduceOp::sum, 1};
    const auto some = explain(busy_nodes(4), collective, {}, nullptr, ChoiceCosts::exact);
    ASSERT_TRUE(some.ok());
    EXPECT_EQ(some->candidates.front().algorithm->name, "tree") << "fastest for a single call";
    EXPECT_EQ(some->choice.algorithm->name, "chain") << "a rank of a tree sends or receives the message twice";
    EXPECT_THAT(some->reason, Mentions("chain", "tree"));
    EXPECT_LT(busy_us(**find_algorithm("chain"), busy_nodes(4), collective),
              0.6 * busy_us(**find_algorithm("tree"), busy_nodes(4), collective));
    collective.count = 2;
    EXPECT_EQ(chosen(Topology::uniform(4, 1), collective), "tree") << "latency dominates";
    EXPECT_EQ(chosen(busy_nodes(16), collective), "tree") << "latency dominates";
  }
}

TEST(Selector, ChoosesByTopologyAndSize) {
  EXPECT_EQ(chosen(Topology::uniform(1, 2), all_reduce(4)), "one_shot");
  EXPECT_EQ(chosen(Topology::uniform(1, 4), all_reduce(64 << 20)), "direct");
  EXPECT_EQ(chosen(Topology::uniform(4, 1), all_reduce(64 << 20)), "ring");
  EXPECT_EQ(chosen(Topology::uniform(2, 2), all_reduce(64 << 20)), "hierarchical");
  EXPECT_EQ(chosen(Topology::uniform(32, 8), all_reduce(64 << 20)), "hierarchical");
  EXPECT_EQ(chosen(Topology::uniform(8, 8), all_reduce(4)), "hierarchical(leader,one_shot)");
  EXPECT_EQ(chosen(Topology::uniform(64, 1), all_reduce(4)), "recursive_doubling");
  EXPECT_EQ(chosen(Topology::uniform(1, 1), all_reduce(4)), "one_shot");
  EXPECT_EQ(chosen(Topology::uniform(4, 4), {CollectiveKind::broadcast, 4, DataType::float32, ReduceOp::sum, 5}), "tree");
  EXPECT_EQ(chosen(Topology::uniform(4, 4), {CollectiveKind::broadcast, 16 << 20, DataType::float32, ReduceOp::sum, 5}),
            "chain");
  EXPECT_EQ(chosen(Topology::uniform(4, 4), {CollectiveKind::barrier, 0, DataType::float32, ReduceOp::sum, 0}),
            "dissemination");
}

TEST(Selector, PrefersSharedMemoryFastPaths) {
  // Between two ranks, direct is a little slower than ring, by the cost per message of its lanes.
  Topology near = Topology::uniform(1, 2);
  near.cost[static_cast<std::size_t>(LinkClass::shared_memory)].latency_us = 8;
  const auto little = explain(near, all_reduce(16 << 20), {}, nullptr, ChoiceCosts::exact);
  ASSERT_TRUE(little.ok());
  EXPECT_EQ(little->candidates.front().algorithm->name, "ring");
  EXPECT_EQ(little->choice.algorithm->name, "direct") << little->reason;
  EXPECT_GT(little->choice.predicted_us, 1.02 * little->candidates.front().predicted_us);
  EXPECT_THAT(little->reason, Mentions("direct", "ring", "mem_alloc"));

  near.cost[static_cast<std::size_t>(LinkClass::shared_memory)].latency_us = 0.1;
  EXPECT_EQ(chosen(near, all_reduce(16 << 10)), "one_shot") << "through shared-memory windows";
  EXPECT_EQ(chosen(Topology::uniform(1, 8), all_reduce(16 << 10)), "direct") << "eight times the traffic is too much";

  near.cost[static_cast<std::size_t>(LinkClass::shared_memory)].latency_us = 80;
  EXPECT_EQ(chosen(near, all_reduce(16 << 20)), "ring") << "direct is too far behind";
  EXPECT_NE(chosen(near, all_reduce(4 << 10)), "direct") << "copies of small messages are cheap";
}

TEST(Selector, RanksThatShareCoresTakeOneShot) {
  const auto on = [](int ranks, double cores) {
    Topology node = Topology::uniform(1, ranks);
    node.cores_per_node = cores;
    return node;
  };
  for (const int ranks : {3, 8, 64, 128}) {
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{1} << 10, std::size_t{8} << 10})
      EXPECT_EQ(chosen(on(ranks, 2), all_reduce(bytes)), "one_shot") << ranks << " ranks, " << bytes << " bytes";
  }
  EXPECT_NE(chosen(on(256, 2), all_reduce(16 << 10)), "one_shot") << "each rank would read 4 MiB";
  EXPECT_NE(chosen(on(64, 64), all_reduce(8 << 10)), "one_shot") << "each rank has a core";
  const auto why = explain(on(64, 2), all_reduce(8 << 10));
  ASSERT_TRUE(why.ok());
  EXPECT_EQ(why->choice.algorithm->name, "one_shot");
  EXPECT_THAT(why->reason, Mentions("one_shot", "cores"));
}

TEST(Selector, PrefersRingOverPartnerSwitches) {
  Topology far = Topology::uniform(4, 2);
  far.cost[static_cast<std::size_t>(LinkClass::network)].latency_us = 200;
  const auto near = explain(far, all_reduce(1 << 20), {}, nullptr, ChoiceCosts::exact);
  ASSERT_TRUE(near.ok());
  EXPECT_NE(near->candidates.front().algorithm->name.find("recursive_halving"), std::string_view::npos);
  EXPECT_EQ(near->choice.algorithm->name, "hierarchical(ring)") << near->reason;
  EXPECT_THAT(near->reason, Mentions("hierarchical(ring)", near->candidates.front().algorithm->name));
  far.cost[static_cast<std::size_t>(LinkClass::network)].latency_us = 2000;
  EXPECT_NE(chosen(far, all_reduce(1 << 20)).find("recursive_halving"), std::string_view::npos) << "the ring is too far behind";
}

constexpr std::array<std::size_t, 8> kSizes{4, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20};

Collective sum_of(DataType type, std::size_t bytes) {
  const std::size_t element_bytes = std::max<std::size_t>(size_of(type), 1);  // clang-tidy believes that it may be 0
  return {CollectiveKind::all_reduce, bytes / element_bytes, type, ReduceOp::sum, 0};
}

TEST(SelectorByClass, FloatSumsGetOneAlgorithmPerClass) {
  std::mt19937 random(20261125);
  const std::vector<std::vector<double>> classes{
      {0.1, 0.5, 0.94, 1.5}, {2.3, 4.7, 9.4, 12, 23.5, 37, 47, 65}, {90, 190, 380}, {750, 3100}};
  for (const std::vector<int>& shape : kShapes) {
    for (const std::size_t bytes : kSizes) {
      const Collective sum = sum_of(bytes < 64 ? DataType::bfloat16 : DataType::float32, bytes);
      for (const std::vector<double>& rates : classes) {
        const Algorithm* first = nullptr;
        for (const double gbit_s : rates) {
          Topology topology = measured(shape, gbit_s, random);
          // A busy machine may or may not detect the burst.
          LinkCost& wire = topology.cost[static_cast<std::size_t>(LinkClass::network)];
          if (random() % 2 == 0) wire.burst_us_per_byte = wire.us_per_byte / 20;
          const auto choice = select(topology, sum);
          ASSERT_TRUE(choice.ok());
          if (first == nullptr) first = choice->algorithm;
          EXPECT_EQ(choice->algorithm, first) << bytes << " bytes on " << topology.shape() << " at " << gbit_s << " Gbit/s";
          EXPECT_EQ(choice->predicted_us, predict_us(*choice->algorithm, topology, sum));
        }
      }
    }
  }
}

TEST(SelectorByClass, OrderIndependentCallsUseExactCosts) {
  std::mt19937 random(1);
  int others = 0;
  for (int sample = 0; sample < 4; ++sample) {
    for (const std::vector<int>& shape : kShapes) {
      const Topology topology = measured(shape, sample % 2 == 0 ? 9.4 : 94, random);
      for (const std::size_t bytes : kSizes) {
        Collective collective = sum_of(DataType::int32, bytes);
        EXPECT_EQ(select(topology, collective)->algorithm->name, chosen(topology, collective));
        collective.type = DataType::float32;
        others += select(topology, collective)->algorithm->name != chosen(topology, collective);
        collective.op = ReduceOp::max;
        EXPECT_EQ(select(topology, collective)->algorithm->name, chosen(topology, collective));
        collective = {CollectiveKind::all_gather, bytes / 4, DataType::float32, ReduceOp::sum, 0};
        EXPECT_EQ(select(topology, collective)->algorithm->name, chosen(topology, collective));
      }
    }
  }
  EXPECT_GT(others, 20) << "classes change no choice, so the test proves nothing";
}

// The predicted loss of time through classes of costs.
TEST(SelectorByClass, CostsLittle) {
  std::mt19937 random(7);
  for (const std::vector<int>& shape : kShapes) {
    double logs = 0;
    int count = 0;
    for (const double gbit_s : {0.94, 2.3, 4.7, 9.4, 23.5, 37.0, 47.0, 94.0, 190.0}) {
      for (int sample = 0; sample < 2; ++sample) {
        const Topology topology = measured(shape, gbit_s, random);
        for (const std::size_t bytes : kSizes) {
          const Collective sum = sum_of(DataType::float32, bytes);
          const auto best = select(topology, sum, {}, nullptr, ChoiceCosts::exact);
          logs += std::log(select(topology, sum)->predicted_us / best->predicted_us);
          ++count;
        }
      }
    }
    const double factor = std::exp(logs / count);
    std::printf("%s: %.3f of the time\n", Topology::ragged(shape).shape().c_str(), factor);
    EXPECT_LT(factor, 1.12) << Topology::ragged(shape).shape();
  }
}

TEST(SelectorByClass, GpuNodesHaveTheirOwnClass) {
  for (const double gbit_s : {400.0, 3200.0}) {
    Topology topology = Topology::uniform(2, 8);
    topology.cost[static_cast<std::size_t>(LinkClass::network)] = {15, 1 / (118 * gbit_s)};
    topology.cost[static_cast<std::size_t>(LinkClass::shared_memory)] = {2, 1 / 280'000.0};
    topology.reduce_us_per_byte = 1 / 1'000'000.0;
    for (const std::size_t bytes : kSizes) {
      const Collective sum = sum_of(DataType::bfloat16, bytes);
      const auto best = select(topology, sum, {}, nullptr, ChoiceCosts::exact);
      const auto choice = select(topology, sum);
      EXPECT_LT(choice->predicted_us, 1.3 * best->predicted_us) << choice->algorithm->name << " for " << best->algorithm->name;
    }
  }
}

TEST(SelectorByClass, IsNamedInTheExplanation) {
  Topology topology = Topology::uniform(4, 1);
  topology.cost[static_cast<std::size_t>(LinkClass::network)] = {500, 1 / (118 * 9.4), 5};
  const auto explanation = explain(topology, all_reduce(256 << 10));
  ASSERT_TRUE(explanation.ok());
  EXPECT_NE(explanation->choice.algorithm->name, chosen(topology, all_reduce(256 << 10)));
  EXPECT_THAT(explanation->reason, Mentions(explanation->choice.algorithm->name, "class"));
  const auto exact = explain(topology, all_reduce(256 << 10), {}, nullptr, ChoiceCosts::exact);
  EXPECT_EQ(exact->choice.algorithm->name, chosen(topology, all_reduce(256 << 10)));
  EXPECT_THAT(exact->reason, ::testing::Not(Mentions("class")));
}

TEST(Selector, FindsAnAlgorithmForEveryShape) {
  for (const int ranks : testing::rank_counts()) {
    for (const Topology& topology : testing::topologies(ranks)) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        const Collective collective{static_cast<CollectiveKind>(kind), 0, DataType::float32, ReduceOp::sum, 0};
        EXPECT_TRUE(select(topology, collective).ok()) << to_string(collective) << " on " << topology.shape();
      }
    }
  }
}

TEST(Selector, TakesForcedAlgorithmOrExplainsRefusal) {
  const Topology topology = Topology::uniform(2, 2);
  const auto ring = select(topology, all_reduce(4), "ring");
  ASSERT_TRUE(ring.ok());
  EXPECT_EQ(ring->algorithm->name, "ring");
  EXPECT_GT(ring->predicted_us, 0);
  EXPECT_EQ(select(topology, all_reduce(4), "rong").status().code(), StatusCode::not_found);
  EXPECT_EQ(select(topology, all_reduce(4), "chain").status().code(), StatusCode::unsupported);
  EXPECT_EQ(select(Topology(), all_reduce(4)).status().code(), StatusCode::invalid_argument);
}

TEST(Selector, ExplainsItsChoice) {
  const auto explanation = explain(Topology::uniform(2, 4), all_reduce(4 << 20));
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation->candidates.size(), algorithms().size());
  EXPECT_EQ(explanation->choice.algorithm->name, "hierarchical");
  EXPECT_THAT(explanation->reason, Mentions("hierarchical", fmt::format("{:.1f} us", explanation->choice.predicted_us)));
  bool ended = false;  // unsupported candidates come last, with their reasons
  double last_us = 0;
  for (const Candidate& candidate : explanation->candidates) {
    if (!candidate.status.ok()) {
      ended = true;
      EXPECT_EQ(candidate.status.code(), StatusCode::unsupported);
      EXPECT_THAT(candidate.status.message(), Mentions("all_reduce"));
      continue;
    }
    EXPECT_FALSE(ended);
    EXPECT_GE(candidate.predicted_us, last_us);
    last_us = candidate.predicted_us;
  }
  EXPECT_TRUE(ended);
  const auto forced = explain(Topology::uniform(2, 4), all_reduce(4 << 20), "ring");
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->choice.algorithm->name, "ring");
  EXPECT_THAT(forced->reason, Mentions("ring", forced->candidates.front().algorithm->name));
}

TEST(Selector, RatesNoEquivalentCompositions) {
  // Unless there are several nodes of several ranks, a composition equals its inner or outer algorithm. It runs only if forced.
  for (const Topology& topology : {Topology::uniform(4, 1), Topology::uniform(1, 4)}) {
    const auto explanation = explain(topology, all_reduce(1 << 20));
    ASSERT_TRUE(explanation.ok());
    for (const Candidate& candidate : explanation->candidates) {
      EXPECT_FALSE(candidate.algorithm->name.starts_with("hierarchical")) << candidate.algorithm->name;
    }
    EXPECT_TRUE(select(topology, all_reduce(4), "hierarchical(circulant)").ok());
  }
}

TEST(Selector, IsDeterministic) {
  const Topology topology = testing::shuffled(Topology::ragged({5, 3, 7}), 11);
  const auto first = select(topology, all_reduce(1 << 20));
  const auto second = select(topology, all_reduce(1 << 20));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->algorithm, second->algorithm);
  EXPECT_EQ(first->predicted_us, second->predicted_us);
}

/// With how many ranks the busiest rank exchanges data.
std::size_t most_peers(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  std::size_t most = 0;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto program = build_program(algorithm, topology, collective, rank);
    std::vector<int> peers;
    for (const Step& step : program->steps) {
      if (step.peer >= 0 && topology.link_class(rank, step.peer) == LinkClass::network &&
          std::ranges::find(peers, step.peer) == peers.end())
        peers.push_back(step.peer);
    }
    most = std::max(most, peers.size());
  }
  return most;
}

TEST(SelectorLinks, AlgorithmsBeyondTheBudgetAreNotChosen) {
  constexpr int kBudget = 12;
  for (const Topology& topology : {Topology::uniform(48, 1), Topology::uniform(20, 3), Topology::ragged({1, 3, 2, 4, 1, 1})}) {
    for (const CollectiveKind kind : {CollectiveKind::all_to_all, CollectiveKind::all_reduce, CollectiveKind::all_gather,
                                      CollectiveKind::broadcast, CollectiveKind::barrier}) {
      for (const std::size_t count : {std::size_t{1}, std::size_t{1} << 12, std::size_t{1} << 22}) {
        const Collective call{kind, kind == CollectiveKind::barrier ? 0 : count, DataType::float32, ReduceOp::sum, 0};
        const auto choice = select(topology, call, {}, nullptr, ChoiceCosts::classes, kBudget);
        ASSERT_TRUE(choice.ok()) << to_string(call) << ": " << choice.status().to_string();
        EXPECT_LE(most_peers(*choice->algorithm, topology, call), std::size_t{kBudget})
            << to_string(call) << " by " << choice->algorithm->name << " on " << topology.shape();
      }
    }
  }
}

TEST(SelectorLinks, LargeAllToAllTakesFewLinks) {
  const Topology topology = Topology::uniform(48, 1);
  const Collective call{CollectiveKind::all_to_all, 1 << 20, DataType::float32, ReduceOp::sum, 0};
  EXPECT_EQ(select(topology, call)->algorithm->name, "direct");
  EXPECT_EQ(select(topology, call, {}, nullptr, ChoiceCosts::classes, 47)->algorithm->name, "direct");
  EXPECT_EQ(select(topology, call, {}, nullptr, ChoiceCosts::classes, 46)->algorithm->name, "bruck");
}

TEST(SelectorLinks, TooFewLinksAreOneClearError) {
  const Collective call{CollectiveKind::all_to_all, 1, DataType::float32, ReduceOp::sum, 0};
  const auto choice = select(Topology::uniform(16, 1), call, {}, nullptr, ChoiceCosts::classes, 2);
  EXPECT_EQ(choice.status().code(), StatusCode::system_error);
  EXPECT_THAT(choice.status().message(), Mentions("all_to_all", "descriptors for 2", "ulimit -n"));
}

}  // namespace
}  // namespace shoal
