// Which stage, replica and slice each rank has, and which numbers of ranks are refused.
#include "src/pipeline/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/mentions.h"

namespace shoal::pipeline {
namespace {

using ::testing::ElementsAre;
using testing::Mentions;

Layout layout_of(int ranks, int pipeline, int tensor, std::string_view placement) {
  return Layout::create(ranks, pipeline, tensor, true, parse_placement(placement).value()).value();
}

std::string refusal(int ranks, int pipeline, int tensor, bool replicates = true) {
  const auto layout = Layout::create(ranks, pipeline, tensor, replicates, parse_placement("cluster").value());
  EXPECT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().code(), StatusCode::invalid_argument);
  return layout.status().message();
}

TEST(PipelineLayout, ClusterPlacesAPipelineOnNeighbours) {
  const Layout layout = layout_of(4, 2, 1, "cluster");
  EXPECT_THAT(layout.group(0, Axis::pipeline), ElementsAre(0, 1));
  EXPECT_THAT(layout.group(3, Axis::pipeline), ElementsAre(2, 3));
  EXPECT_THAT(layout.group(1, Axis::replica), ElementsAre(1, 3));
  EXPECT_THAT(layout.group(2, Axis::tensor), ElementsAre(2));
}

TEST(PipelineLayout, SpreadPlacesReplicasOnNeighbours) {
  const Layout layout = layout_of(4, 2, 1, "spread");
  EXPECT_THAT(layout.group(0, Axis::pipeline), ElementsAre(0, 2));
  EXPECT_THAT(layout.group(1, Axis::pipeline), ElementsAre(1, 3));
  EXPECT_THAT(layout.group(3, Axis::replica), ElementsAre(2, 3));
}

// DPT: rank = (d P + p) T + t. TPD: rank = (t P + p) D + d.
TEST(PipelineLayout, RankFollowsTheLetters) {
  const Layout cluster = layout_of(24, 3, 4, "DPT");
  EXPECT_EQ(cluster.rank({1, 2, 3}), (1 * 3 + 2) * 4 + 3);
  const Layout spread = layout_of(24, 3, 4, "TPD");
  EXPECT_EQ(spread.rank({1, 2, 3}), (3 * 3 + 2) * 2 + 1);
  const Layout other = layout_of(24, 3, 4, "PTD");
  EXPECT_EQ(other.rank({1, 2, 3}), (2 * 4 + 3) * 2 + 1);
}

TEST(PipelineLayout, EveryPlacementIsABijectionWithDisjointGroups) {
  for (const char* placement : {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}) {
    const Layout layout = layout_of(24, 3, 4, placement);
    EXPECT_EQ(layout.ranks(), 24);
    EXPECT_EQ(layout.size(Axis::replica), 2);
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      EXPECT_EQ(layout.rank(layout.position(rank)), rank) << placement;
      for (const Axis axis : {Axis::replica, Axis::pipeline, Axis::tensor}) {
        const std::vector<int> group = layout.group(rank, axis);
        EXPECT_EQ(static_cast<int>(group.size()), layout.size(axis));
        EXPECT_THAT(group, ::testing::Contains(rank));
        for (const int other : group) EXPECT_EQ(layout.color(other, axis), layout.color(rank, axis)) << placement;
      }
    }
    std::set<int> colors;
    for (int rank = 0; rank < layout.ranks(); ++rank) colors.insert(layout.color(rank, Axis::pipeline));
    EXPECT_EQ(colors.size(), 8U) << placement;
  }
}

TEST(PipelineLayout, RefusalsNameNumbersThatWork) {
  EXPECT_THAT(refusal(8, 3, 1), Mentions("3 partitions", "8 ranks", "2"));
  EXPECT_THAT(refusal(4, 9, 1), Mentions("9 partitions", "4 ranks", "nearest is 4"));
  EXPECT_THAT(refusal(12, 2, 4), Mentions("tensor_parallel_degree 4", "2 partitions", "nearest is 3"));
  EXPECT_THAT(refusal(8, 2, 1, /*replicates=*/false), Mentions("8 ranks", "2 partitions", "ddp", "4 replicas"));
  EXPECT_THAT(refusal(8, 0, 1), Mentions("0 partitions"));
  EXPECT_THAT(refusal(8, 2, 0), Mentions("tensor_parallel_degree 0"));
  EXPECT_THAT(refusal(0, 1, 1), Mentions("0 ranks"));
}

TEST(PipelineLayout, OtherLettersAreRefused) {
  for (const char* text : {"", "DP", "DPTT", "DPX", "DDT", "dpt", "Cluster"}) {
    const auto placement = parse_placement(text);
    ASSERT_FALSE(placement.ok()) << text;
    EXPECT_THAT(placement.status().message(),
                Mentions("placement_strategy", "cluster", "spread", "'" + std::string(text) + "'"));
  }
}

}  // namespace
}  // namespace shoal::pipeline
