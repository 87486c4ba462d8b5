// Plans: tile sizes, and which sends wait for which receives.
#include "src/plan/plan.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "src/algorithms/algorithm.h"

namespace shoal {
namespace {

constexpr std::size_t kTile = 64 << 10;
constexpr std::size_t kNetworkTile = 256 << 10;

struct Made {
  std::vector<std::unique_ptr<Plan>> of_rank;

  // The largest tile between `rank` and `peer`, in bytes; 0 if they exchange none.
  [[nodiscard]] std::size_t largest_tile(int rank, int peer) const {
    const Plan& plan = *of_rank[static_cast<std::size_t>(rank)];
    std::size_t largest = 0;
    for (const PlanLink& link : plan.links) {
      if (link.link != static_cast<std::uint32_t>(peer)) continue;
      for (const auto& list : {link.sends, link.receives}) {
        for (const std::uint32_t i : list) largest = std::max(largest, plan.instructions[i].tile_bytes);
      }
    }
    return largest;
  }
};

// Links are numbered by the rank at their other end.
Made make(const Topology& topology, const char* algorithm, std::size_t bytes, std::size_t network_tile = kNetworkTile,
          CollectiveKind kind = CollectiveKind::all_reduce, bool costly_tiles = false) {
  Made made;
  std::vector<int> links(static_cast<std::size_t>(topology.ranks()));
  std::iota(links.begin(), links.end(), 0);
  PlanKey key;
  key.collective.kind = kind;
  key.collective.type = DataType::float32;
  key.collective.count = bytes / 4;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    const auto program = build_program(**find_algorithm(algorithm), topology, key.collective, rank);
    EXPECT_TRUE(program.ok()) << program.status().to_string();
    auto plan =
        make_plan({&topology, rank, links, kTile, network_tile, {}, costly_tiles || topology.nodes() > 1}, key, *program);
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    made.of_rank.push_back(std::move(plan).value());
  }
  return made;
}

TEST(Plan, SmallMessagesUseLargerTilesIfTilesAreCostly) {
  const Topology pair = Topology::uniform(1, 2);
  constexpr CollectiveKind kKind = CollectiveKind::all_reduce;
  EXPECT_EQ(make(pair, "direct", 64 << 10, kNetworkTile, kKind, false).largest_tile(0, 1), 8 << 10);
  EXPECT_EQ(make(pair, "direct", 64 << 10, kNetworkTile, kKind, true).largest_tile(0, 1), 32 << 10);
  EXPECT_EQ(make(Topology::uniform(2, 1), "direct", 64 << 10).largest_tile(0, 1), 32 << 10);
}

TEST(Plan, LargeMessagesUseLargerTilesBetweenNodes) {
  EXPECT_EQ(make(Topology::uniform(2, 1), "one_shot", 4 << 20).largest_tile(0, 1), kNetworkTile);
  EXPECT_EQ(make(Topology::uniform(1, 2), "one_shot", 4 << 20).largest_tile(0, 1), kTile);
  EXPECT_EQ(make(Topology::uniform(2, 1), "one_shot", 4 << 20, kTile).largest_tile(0, 1), kTile);
}

TEST(Plan, NetworkMessagesHaveSeveralTilesToOverlap) {
  for (const std::size_t bytes : {std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{512} << 10}) {
    const Made made = make(Topology::uniform(2, 1), "one_shot", bytes);
    EXPECT_LE(made.largest_tile(0, 1), std::max(bytes / 4, std::size_t{32} << 10)) << bytes;
  }
}

// The rank whose data the send from `rank` to `peer` waits for, byte by byte; -1: it waits for none.
int paced_by(const Made& made, int rank, int peer) {
  const Plan& plan = *made.of_rank[static_cast<std::size_t>(rank)];
  const auto link = std::ranges::find(plan.links, static_cast<std::uint32_t>(peer), &PlanLink::link);
  const Instruction& send = plan.instructions[link->sends.front()];
  if (send.dependency_count == 0) return -1;
  EXPECT_EQ(send.dependency_count, 1U);
  const PlanDependency& dependency = plan.dependencies[send.first_dependency];
  EXPECT_EQ(dependency.shift_bytes, 0) << "byte by byte";
  const Instruction& receive = plan.instructions[dependency.instruction];
  EXPECT_EQ(receive.op, StepOp::recv);
  return static_cast<int>(plan.edges[receive.first_edge].link);
}

TEST(Plan, LargeAllToAllPacesSendsByReceives) {
  constexpr CollectiveKind kKind = CollectiveKind::all_to_all;
  const Made four = make(Topology::uniform(4, 1), "direct", 1 << 20, kNetworkTile, kKind);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(paced_by(four, rank, (rank + 1) % 4), -1) << "the first send waits for none";
    EXPECT_EQ(paced_by(four, rank, (rank + 2) % 4), (rank + 3) % 4);
    EXPECT_EQ(paced_by(four, rank, (rank + 3) % 4), (rank + 2) % 4);
  }
  // Ranks 0, 1 and 2, 3 share a node: transfers through shared memory are not paced.
  const Made pairs = make(Topology::uniform(2, 2), "direct", 1 << 20, kNetworkTile, kKind);
  EXPECT_EQ(paced_by(pairs, 0, 1), -1);
  EXPECT_EQ(paced_by(pairs, 0, 2), 3);
  EXPECT_EQ(paced_by(pairs, 0, 3), 2);
  EXPECT_EQ(paced_by(pairs, 1, 0), -1);
  EXPECT_EQ(paced_by(pairs, 1, 2), -1) << "the first send waits for none";
  EXPECT_EQ(paced_by(make(Topology::uniform(4, 1), "direct", 64 << 10, kNetworkTile, kKind), 0, 3), -1)
      << "a message of few tiles is not paced";
  EXPECT_EQ(paced_by(make(Topology::uniform(4, 1), "direct", 4 << 20, kNetworkTile, CollectiveKind::all_gather), 0, 3), -1);
}

// Tiles of different sizes would need several folds, in a different order on each rank.
TEST(Plan, MixedLinksShareOneFold) {
  const Topology mixed = Topology::ragged({1, 2});
  for (const char* algorithm : {"one_shot", "direct"}) {
    const Made made = make(mixed, algorithm, 8 << 20);
    std::size_t most_operands = 0;
    for (const auto& plan : made.of_rank) {
      for (std::size_t i = 0; i < plan->instructions.size(); ++i) {
        const Instruction& fold = plan->instructions[i];
        if (fold.op != StepOp::recv_reduce) continue;
        most_operands = std::max<std::size_t>(most_operands, fold.edge_count);
        for (std::size_t k = 0; k < i; ++k) {
          const Instruction& other = plan->instructions[k];
          EXPECT_FALSE(other.op == StepOp::recv_reduce && other.target.offset_bytes == fold.target.offset_bytes)
              << algorithm << " folds into the same bytes twice";
        }
      }
    }
    EXPECT_EQ(most_operands, 2U) << algorithm;
  }
}

// Nodes of three and two ranks: every pair exchanges tiles, folds mix both kinds of links, shared memory keeps its tile size.
TEST(Plan, BothEndsCutEveryMessageAlike) {
  const Topology ragged = Topology::ragged({3, 2});
  // A hierarchical message travels in segments, whose messages are smaller.
  for (const auto& [algorithm, largest_expected] :
       {std::pair{"direct", kTile}, std::pair{"ring", kNetworkTile}, std::pair{"one_shot", kTile},
        std::pair{"hierarchical(direct,ring)", kNetworkTile / 2}}) {
    const Made made = make(ragged, algorithm, 24 << 20);
    std::size_t largest = 0;
    for (int a = 0; a < ragged.ranks(); ++a) {
      EXPECT_EQ(made.of_rank[static_cast<std::size_t>(a)]->signature.plan_fingerprint,
                made.of_rank[0]->signature.plan_fingerprint);
      for (int b = 0; b < ragged.ranks(); ++b) {
        if (a == b) continue;
        const auto cut = [&](int rank, int peer, bool sends) {
          std::vector<std::size_t> tiles;
          const Plan& plan = *made.of_rank[static_cast<std::size_t>(rank)];
          for (const PlanLink& link : plan.links) {
            if (link.link != static_cast<std::uint32_t>(peer)) continue;
            for (const std::uint32_t i : sends ? link.sends : link.receives) tiles.push_back(plan.instructions[i].tile_bytes);
          }
          return tiles;
        };
        EXPECT_EQ(cut(a, b, true), cut(b, a, false)) << algorithm << " from " << a << " to " << b;
        if (ragged.link_class(a, b) == LinkClass::network) {
          largest = std::max(largest, made.largest_tile(a, b));
        } else {
          EXPECT_LE(made.largest_tile(a, b), kTile) << algorithm;
        }
      }
    }
    EXPECT_EQ(largest, largest_expected) << algorithm;
  }
}

// By it the queue of a link has its size before the first call.
TEST(Plan, LinksKnowHowManyTilesTheySend) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 20, std::size_t{24} << 20}) {
    for (const char* algorithm : {"recursive_doubling", "ring", "direct"}) {
      const Made made = make(Topology::uniform(1, 4), algorithm, bytes);
      for (const auto& plan : made.of_rank) {
        for (const PlanLink& link : plan->links) {
          std::size_t tiles = 1;  // the signature
          for (const std::uint32_t i : link.sends) {
            for (std::size_t sent = 0; sent < plan->instructions[i].size_bytes; sent += plan->instructions[i].tile_bytes)
              ++tiles;
          }
          EXPECT_EQ(link.tiles, tiles) << algorithm << ", " << bytes << " bytes";
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal
