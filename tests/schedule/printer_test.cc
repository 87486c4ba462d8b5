// The Printer and the timeline of its drawings.

#include "src/schedule/printer.h"

#include <gtest/gtest.h>

#include <set>

#include "src/algorithms/algorithm.h"
#include "src/schedule/timeline.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

Schedule build(std::string_view algorithm, const Topology& topology, CollectiveKind kind = CollectiveKind::all_reduce) {
  return *build_schedule(**find_algorithm(algorithm), topology, {kind, 1024, DataType::float32, ReduceOp::sum, 0});
}

std::size_t occurrences(const std::string& text, std::string_view what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

TEST(Timeline, ShowsEveryMessageOnceAndNeverTwoInOneSlot) {
  for (const Topology& topology : {Topology::uniform(1, 5), Topology::uniform(2, 3), Topology::ragged({3, 1, 2})}) {
    for (const Algorithm& algorithm : algorithms()) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        const Collective collective{static_cast<CollectiveKind>(kind), 1024, DataType::float32, ReduceOp::sum, 0};
        if (!algorithm.supports(topology, collective).ok()) continue;
        const Schedule schedule = *build_schedule(algorithm, topology, collective);
        std::size_t sends = 0;
        for (const Program& program : schedule.programs) {
          for (const Step& step : program.steps) sends += step.op == StepOp::send ? 1 : 0;
        }
        std::set<std::pair<int, int>> sending;
        std::set<std::pair<int, int>> receiving;
        for (const Message& message : timeline(schedule)) {
          EXPECT_TRUE(sending.emplace(message.slot, message.from).second);
          EXPECT_TRUE(receiving.emplace(message.slot, message.to).second);
        }
        EXPECT_EQ(sending.size(), sends) << algorithm.name << " on " << topology.shape();
      }
    }
  }
}

TEST(Timeline, HasOneSlotPerHop) {
  const auto slots = [](const Schedule& schedule) { return timeline(schedule).back().slot + 1; };
  EXPECT_EQ(slots(build("ring", Topology::uniform(1, 6))), 10);
  EXPECT_EQ(slots(build("direct", Topology::uniform(1, 6))), 10);
  EXPECT_EQ(slots(build("recursive_doubling", Topology::uniform(1, 8))), 3);
  EXPECT_EQ(slots(build("recursive_doubling", Topology::uniform(1, 6))), 4);
  EXPECT_EQ(slots(build("one_shot", Topology::uniform(1, 6))), 5);
  EXPECT_EQ(slots(build("dissemination", Topology::uniform(1, 6), CollectiveKind::barrier)), 3);
  EXPECT_EQ(slots(build("tree", Topology::uniform(1, 8), CollectiveKind::broadcast)), 3);
  EXPECT_EQ(slots(build("chain", Topology::uniform(2, 3), CollectiveKind::broadcast)), 5);
}

TEST(Timeline, OmitsMessagesThatAreNeverSent) {
  Schedule schedule = build("ring", Topology::uniform(1, 3));
  auto& steps = schedule.programs[1].steps;
  steps.erase(steps.begin() + 1);  // its first receive, so that the steps that depend on it never run
  const std::size_t shown = timeline(schedule).size();
  EXPECT_GT(shown, 0U);
  EXPECT_LT(shown, 12U);
}

TEST(Printer, WritesOneLineForEveryStep) {
  const Schedule schedule = build("ring", Topology::uniform(1, 2));
  EXPECT_EQ(print_text(schedule),
            "ring: all_reduce float32 x 1024 sum on 1x2\n"
            "rank 0 (node 0): 2 chunks of about 2048 bytes, 1 lane, 4 steps\n"
            "     0  send input[1] to 1\n"
            "     1  recv_reduce output[0] = input[0] and from 1\n"
            "     2  send output[0] to 1\n"
            "     3  recv output[1] from 1\n"
            "rank 1 (node 0): 2 chunks of about 2048 bytes, 1 lane, 4 steps\n"
            "     0  send input[0] to 0\n"
            "     1  recv_reduce output[1] = input[1] and from 0\n"
            "     2  send output[1] to 0\n"
            "     3  recv output[0] from 0\n");
}

TEST(Printer, DrawsEveryStepAndMessageInDot) {
  const std::string dot = print_dot(build("direct", Topology::uniform(1, 3)));
  EXPECT_EQ(dot.rfind("digraph schedule {", 0), 0U);
  EXPECT_EQ(occurrences(dot, "subgraph cluster_"), 3U);
  EXPECT_EQ(occurrences(dot, "[label=\""), 3U * 8);
  EXPECT_EQ(occurrences(dot, " -> ") - occurrences(dot, "style=dashed"), 12U);
  EXPECT_EQ(occurrences(dot, "{"), occurrences(dot, "}"));
}

TEST(Printer, DrawsEveryRankAndMessageInSvg) {
  const Schedule schedule = build("hierarchical", Topology::uniform(2, 2));
  const std::string svg = print_svg(schedule);
  EXPECT_EQ(svg.rfind("<svg ", 0), 0U);
  EXPECT_EQ(occurrences(svg, "</svg>"), 1U);
  EXPECT_EQ(occurrences(svg, "<g><title>"), timeline(schedule).size());
  EXPECT_EQ(occurrences(svg, "<g>"), occurrences(svg, "</g>"));
  EXPECT_EQ(occurrences(svg, ">node "), 2U);
  for (const char* rank : {">rank 0<", ">rank 1<", ">rank 2<", ">rank 3<"}) EXPECT_EQ(occurrences(svg, rank), 1U);
  EXPECT_EQ(occurrences(svg, ">folded, between nodes<"), 1U);
  EXPECT_EQ(occurrences(print_svg(build("ring", Topology::uniform(1, 2))), ">folded, between nodes<"), 0U);
}

}  // namespace
}  // namespace shoal
