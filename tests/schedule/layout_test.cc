// Topology, ChunkLayout and guarantees of the algorithms beyond the result.

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "src/algorithms/algorithm.h"
#include "src/base/rows.h"
#include "src/schedule/layout.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

TEST(Topology, ComputesItsShape) {
  const Topology even = Topology::uniform(2, 4);
  EXPECT_EQ(even.ranks(), 8);
  EXPECT_EQ(even.nodes(), 2);
  EXPECT_EQ(even.shape(), "2x4");
  EXPECT_EQ(even.local_rank(6), 2);
  EXPECT_EQ(even.link_class(1, 1), LinkClass::local);
  EXPECT_EQ(even.link_class(1, 3), LinkClass::shared_memory);
  EXPECT_EQ(even.link_class(1, 4), LinkClass::network);
  const Topology uneven = Topology::ragged({3, 1, 2});
  EXPECT_EQ(uneven.shape(), "3+1+2");
  EXPECT_EQ(uneven.ranks_of_node(2), (std::vector{4, 5}));
  const Topology dealt = testing::round_robin(5, 2);
  EXPECT_EQ(dealt.ranks_of_node(0), (std::vector{0, 2, 4}));
  EXPECT_EQ(dealt.local_rank(3), 1);
  EXPECT_EQ(Topology().nodes(), 0);
}

std::vector<int> list(std::span<const int> ranks) { return {ranks.begin(), ranks.end()}; }

TEST(RanksByNode, SortsTheRanksOfEveryNode) {
  const RanksByNode nodes(testing::scattered({0, 1, 0, 2, 2, 0}));
  EXPECT_EQ(nodes.ranks(), 6);
  EXPECT_EQ(nodes.nodes(), 3U);
  EXPECT_EQ(nodes.largest(), 3U);
  EXPECT_EQ(nodes.node_of(4), 2U);
  EXPECT_EQ(list(nodes[0]), (std::vector{0, 2, 5}));
  EXPECT_EQ(list(nodes[1]), (std::vector{1}));
  EXPECT_EQ(list(nodes[2]), (std::vector{3, 4}));
  EXPECT_EQ(list(nodes.in_order()), (std::vector{0, 2, 5, 1, 3, 4}));
  EXPECT_EQ(RanksByNode(Topology()).nodes(), 0U);
}

TEST(Rows, KeepsRowsApart) {
  Rows<int> rows;
  EXPECT_EQ(rows.size(), 0U);
  rows.add(1);
  rows.add(2);
  EXPECT_EQ(rows.size(), 0U) << "the row has not ended";
  rows.end_row();
  rows.end_row();
  rows.add(3);
  rows.end_row();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(list(rows[0]), (std::vector{1, 2}));
  EXPECT_TRUE(rows[1].empty());
  EXPECT_EQ(list(rows[2]), (std::vector{3}));
  EXPECT_EQ(list(rows.values()), (std::vector{1, 2, 3}));
}

TEST(ChunkLayout, CoversEveryByteOnce) {
  for (const std::size_t count : {0UL, 1UL, 6UL, 7UL, 1009UL}) {
    for (const std::uint32_t chunks : {1U, 3U, 7U, 64U}) {
      const ChunkLayout layout({CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0}, 3, 1, chunks);
      std::size_t offset = 0;
      for (std::uint32_t i = 0; i < chunks; ++i) {
        const ByteRange range = layout.bytes({Buffer::output, i, 1});
        EXPECT_EQ(range.offset_bytes, offset);
        EXPECT_EQ(range.size_bytes, layout.size_bytes({Buffer::output, i, 1}));
        EXPECT_EQ(range.size_bytes % 4, 0U);
        EXPECT_LE(range.size_bytes, layout.scratch_chunk_bytes());
        EXPECT_LE(range.size_bytes / 4, count / chunks + 1);
        offset += range.size_bytes;
      }
      EXPECT_EQ(offset, count * 4);
      EXPECT_EQ(layout.bytes({Buffer::input, 0, chunks}).size_bytes, count * 4);
    }
  }
}

TEST(ChunkLayout, PutsTheInputOfAnAllGatherAtItsRank) {
  const Collective collective{CollectiveKind::all_gather, 5, DataType::float64, ReduceOp::sum, 0};
  const ChunkLayout layout(collective, 3, 2, 6);
  EXPECT_EQ(layout.bytes({Buffer::output, 4, 2}).offset_bytes, 2 * 5 * 8U);
  EXPECT_EQ(layout.bytes({Buffer::output, 4, 2}).size_bytes, 5 * 8U);
  EXPECT_EQ(layout.bytes({Buffer::input, 0, 2}).offset_bytes, 0U);
  EXPECT_EQ(layout.bytes({Buffer::input, 0, 2}).size_bytes, 5 * 8U);
  EXPECT_EQ(layout.bytes({Buffer::input, 1, 1}).size_bytes, layout.bytes({Buffer::output, 5, 1}).size_bytes);
}

TEST(ChunkLayout, DoesNotOverflowOnHugeMessages) {
  const std::size_t count = std::size_t{1} << 60;
  const ChunkLayout layout({CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0}, 2, 0, 4096);
  EXPECT_EQ(layout.bytes({Buffer::output, 4095, 1}).offset_bytes, (count / 4096 * 4095) * 4);
  EXPECT_EQ(layout.bytes({Buffer::output, 0, 4096}).size_bytes, count * 4);
}

TEST(ChunkLayout, ScratchChunksFitTheLargestChunk) {
  const ChunkLayout layout({CollectiveKind::all_reduce, 100, DataType::float32, ReduceOp::sum, 0}, 2, 0, 3);
  EXPECT_EQ(layout.scratch_chunk_bytes(), 136U);  // 34 elements
  EXPECT_EQ(layout.bytes({Buffer::scratch, 2, 1, 0}).offset_bytes, 272U);
  EXPECT_EQ(layout.bytes({Buffer::scratch, 2, 1, 0}).size_bytes, 132U) << "the chunk that it holds is smaller";
  EXPECT_EQ(layout.bytes({Buffer::scratch, 2, 1, 2}).size_bytes, 136U);
}

TEST(Algorithms, RefuseInvalidArguments) {
  const Algorithm& ring = **find_algorithm("ring");
  const Topology two = Topology::uniform(1, 2);
  const auto code = [&](const Topology& topology, const Collective& collective, int rank) {
    return build_program(ring, topology, collective, rank).status().code();
  };
  const Collective good{CollectiveKind::all_reduce, 8, DataType::float32, ReduceOp::sum, 0};
  EXPECT_EQ(code(two, good, 1), StatusCode::ok);
  EXPECT_EQ(code(two, good, 2), StatusCode::invalid_argument);
  EXPECT_EQ(code(two, good, -1), StatusCode::invalid_argument);
  EXPECT_EQ(code(Topology(), good, 0), StatusCode::invalid_argument);
  Topology gap = two;
  gap.node_of_rank = {0, 2};
  EXPECT_EQ(code(gap, good, 0), StatusCode::invalid_argument);
  gap.node_of_rank = {-1, 0};
  EXPECT_EQ(code(gap, good, 0), StatusCode::invalid_argument);
  Collective bad = good;
  bad.op = ReduceOp::bxor;
  EXPECT_EQ(code(two, bad, 0), StatusCode::invalid_argument);
  bad = good;
  bad.count = ~std::size_t{0} / 4;
  EXPECT_EQ(code(two, bad, 0), StatusCode::invalid_argument);
  bad = good;
  bad.type = static_cast<DataType>(99);
  EXPECT_EQ(code(two, bad, 0), StatusCode::invalid_argument);
  bad = good;
  bad.kind = CollectiveKind::barrier;
  EXPECT_EQ(code(two, bad, 0), StatusCode::unsupported);
  bad = {CollectiveKind::broadcast, 8, DataType::float32, ReduceOp::sum, 2};
  EXPECT_EQ(build_program(**find_algorithm("tree"), two, bad, 0).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(find_algorithm("rin").status().code(), StatusCode::not_found);
  EXPECT_NE(find_algorithm("rin").status().message().find("recursive_doubling"), std::string::npos);
}

/// Bytes that `node` sends to other nodes. Also checks that no scratch is used.
std::size_t bytes_out_of_node(const Schedule& schedule, int node) {
  std::size_t bytes = 0;
  for (const Program& program : schedule.programs) {
    EXPECT_EQ(program.scratch_chunks, 0U);
    const ChunkLayout layout(schedule.collective, schedule.topology.ranks(), program.rank, program.message_chunks);
    for (const Step& step : program.steps) {
      const bool leaves =
          step.op == StepOp::send && schedule.topology.link_class(program.rank, step.peer) == LinkClass::network;
      if (leaves && schedule.topology.node_of_rank[static_cast<std::size_t>(program.rank)] == node)
        bytes += layout.bytes(step.source).size_bytes;
    }
  }
  return bytes;
}

TEST(Algorithms, HierarchicalSendsEachByteOnce) {
  const std::size_t count = 9'000'000;
  const Collective collective{CollectiveKind::all_reduce, count, DataType::float32, ReduceOp::sum, 0};
  for (const Topology& topology :
       {Topology::uniform(2, 4), Topology::uniform(20, 3), Topology::ragged({4, 1, 3}), testing::round_robin(9, 3)}) {
    const auto schedule = build_schedule(**find_algorithm("hierarchical"), topology, collective);
    ASSERT_TRUE(schedule.ok());
    const auto nodes = static_cast<std::size_t>(topology.nodes());
    const double least = 2.0 * static_cast<double>(nodes - 1) / static_cast<double>(nodes) * static_cast<double>(count) * 4;
    for (int node = 0; node < topology.nodes(); ++node) {
      EXPECT_NEAR(static_cast<double>(bytes_out_of_node(*schedule, node)), least, least * 1e-4)
          << topology.shape() << " node " << node;
    }
  }
}

/// The first chunk of its strand that the first step over `link` takes; none if there is no such step.
std::optional<std::uint32_t> first_chunk_over(LinkClass link, const Program& program, const Topology& topology,
                                              std::uint32_t strands) {
  for (const Step& step : program.steps) {
    if (topology.link_class(program.rank, step.peer) == link)
      return step.source.first_chunk % (program.message_chunks / strands);
  }
  return {};
}

TEST(Algorithms, NodeFirstReducesWhatTheWireFirstSends) {
  const Collective collective{CollectiveKind::all_reduce, 100'000, DataType::float32, ReduceOp::sum, 0};
  int later = 0;
  for (const Topology& topology : {Topology::uniform(5, 3), Topology::uniform(8, 3), Topology::uniform(7, 3),
                                   Topology::ragged({3, 1, 3, 2}), testing::round_robin(15, 5)}) {
    for (const std::string wire : {"direct", "ring", "circulant", "recursive_halving", "tree", "one_shot"}) {
      for (int rank = 0; rank < topology.ranks(); ++rank) {
        const auto program = build_program(**find_algorithm("hierarchical(" + wire + ")"), topology, collective, rank);
        ASSERT_TRUE(program.ok());
        const auto inside = first_chunk_over(LinkClass::shared_memory, *program, topology, 3);
        if (!inside) continue;
        EXPECT_EQ(inside, first_chunk_over(LinkClass::network, *program, topology, 3))
            << wire << " on " << topology.shape() << " rank " << rank;
        later += static_cast<int>(*inside > 0);
      }
    }
  }
  EXPECT_GT(later, 100) << "chunk 0 is always first, so the test proves nothing";
}

TEST(Algorithms, DirectFoldsAllOperandsAtOnce) {
  const Collective collective{CollectiveKind::all_reduce, 64 << 20, DataType::float32, ReduceOp::sum, 0};
  const auto program = build_program(**find_algorithm("direct"), Topology::uniform(1, 4), collective, 2);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(program->lanes, 64U);
  EXPECT_EQ(program->message_chunks, 256U);
  EXPECT_EQ(program->steps.front().peer, 3) << "starts with the next higher rank";
  // The gather of a lane follows the scatter of the next.
  std::set<std::uint32_t> folded;
  for (std::size_t i = 0; i < program->steps.size(); ++i) {
    const Step& step = program->steps[i];
    EXPECT_TRUE(step.op != StepOp::recv || folded.contains(std::min(step.lane + 1, 63U)));
    if (step.op != StepOp::recv_reduce || step.source.buffer == Buffer::output) continue;
    EXPECT_TRUE(folded.insert(step.lane).second) << "one fold per lane";
    for (std::size_t k = 1; k < 3; ++k) {
      const Step& next = program->steps[i + k];
      EXPECT_EQ(next.op, StepOp::recv_reduce);
      EXPECT_EQ(next.target, step.target);
      EXPECT_EQ(next.source, step.target);
    }
  }
  EXPECT_EQ(folded.size(), 64U);
  EXPECT_EQ(build_program(**find_algorithm("direct"), Topology::uniform(4, 1), collective, 2)->lanes, 1U);
}

}  // namespace
}  // namespace shoal
