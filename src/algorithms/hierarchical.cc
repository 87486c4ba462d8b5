// hierarchical: reduce-scatter inside each node, all_reduce of each strand between the nodes, all_gather inside each node.
//
// The message is cut into as many strands as the largest node has ranks; on node n strand s is in the hands of local rank
// s mod L_n, so every rank of every node drives wires, and each byte crosses a node's wire once in each direction.

#include <algorithm>
#include <utility>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// Up to so many nodes a strand goes straight to the owners of its chunks (two hops); beyond, the fan-in is too wide.
constexpr std::size_t kMaxDirectNodes = 16;
// Large messages are cut into segments, so that the node gathers one while the wire still works on the next. A chunk stays
// larger than this, and a Program has no more than kMaxLanes lanes where the strands alone do not exceed them.
constexpr std::size_t kSegmentChunkBytes = 256 << 10;
constexpr std::size_t kMaxSegments = 8;
constexpr std::size_t kMaxLanes = 64;

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce});
}

/// How a message is dealt to segments, strands and nodes: chunk (segment * strands + strand) * nodes + i is the i-th of a
/// strand.
struct Deal {
  std::vector<std::vector<int>> nodes;
  std::uint32_t node = 0;  // of the rank whose Program is built
  std::uint32_t strands = 0;
  std::uint32_t segments = 0;
  bool direct = true;

  [[nodiscard]] std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes.size()); }
  [[nodiscard]] std::uint32_t lane(std::uint32_t segment, std::uint32_t strand) const { return segment * strands + strand; }
  /// Which chunk of a strand node n reduces. A ring takes them in descending order, so that its sends ascend from the
  /// chunk after the own one, as those of direct do.
  [[nodiscard]] std::uint32_t owned_chunk(std::uint32_t n) const { return direct ? n : node_count() - 1 - n; }
};

Deal make_deal(const Topology& topology, const Collective& collective, int rank) {
  Deal deal;
  deal.nodes = ranks_of_nodes(topology);
  deal.node = static_cast<std::uint32_t>(topology.node_of_rank[static_cast<std::size_t>(rank)]);
  for (const auto& ranks : deal.nodes) deal.strands = std::max(deal.strands, static_cast<std::uint32_t>(ranks.size()));
  deal.direct = deal.nodes.size() <= kMaxDirectNodes;
  const std::size_t most = std::clamp<std::size_t>(kMaxLanes / deal.strands, 1, kMaxSegments);
  const std::size_t chunks = deal.strands * deal.nodes.size();
  deal.segments =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(collective.input_bytes() / chunks / kSegmentChunkBytes, 1, most));
  return deal;
}

/// Runs `stage` among the ranks of this node, for the chunks of every strand of a segment, starting with chunk `first`: those
/// up to the end of the strands from all ranks, then those before `first`.
template <typename Stage>
void inside_node(ProgramBuilder& program, const Deal& deal, std::uint32_t segment, std::uint32_t first, Stage stage) {
  const auto& ranks = deal.nodes[deal.node];
  const std::uint32_t chunks = deal.node_count();
  for (const auto& [begin, end] : {std::pair{first, chunks}, std::pair{0U, first}}) {
    if (begin == end) continue;
    Shares shares(ranks.size());
    for (std::uint32_t strand = 0; strand < deal.strands; ++strand) {
      const std::uint32_t lane = deal.lane(segment, strand);
      shares[strand % ranks.size()].push_back({lane, lane * chunks + begin, end - begin});
    }
    stage(program, ranks, shares);
  }
}

/// Runs `direct_stage` or `ring_stage` for every strand of a segment, among the ranks that hold it, one on each node.
template <typename Stage>
void between_nodes(ProgramBuilder& program, const Deal& deal, std::uint32_t segment, Stage direct_stage, Stage ring_stage) {
  for (std::uint32_t strand = 0; strand < deal.strands; ++strand) {
    const std::uint32_t lane = deal.lane(segment, strand);
    std::vector<int> members;
    Shares shares;
    for (std::uint32_t n = 0; n < deal.node_count(); ++n) {
      members.push_back(deal.nodes[n][strand % deal.nodes[n].size()]);
      shares.push_back({{lane, lane * deal.node_count() + deal.owned_chunk(n), 1}});
    }
    (deal.direct ? direct_stage : ring_stage)(program, members, shares);
  }
}

Program build(const Topology& topology, const Collective& collective, int rank) {
  const Deal deal = make_deal(topology, collective, rank);
  const std::uint32_t owned = deal.owned_chunk(deal.node);
  const std::uint32_t lanes = deal.segments * deal.strands;
  ProgramBuilder program(topology, collective, rank, lanes * deal.node_count(), lanes);

  // The wire takes the chunks of the other nodes first, beginning with the one after the own: the node stage makes them in that
  // order, and for all segments before it gathers any, so that the wire never waits behind it.
  for (std::uint32_t g = 0; g < deal.segments; ++g) {
    inside_node(program, deal, g, (owned + 1) % deal.node_count(), direct_reduce_scatter);
  }
  const auto gather = [&](std::uint32_t g) {
    between_nodes(program, deal, g, direct_all_gather, ring_all_gather);
    inside_node(program, deal, g, owned, direct_all_gather);
  };
  for (std::uint32_t g = 0; g < deal.segments; ++g) {
    between_nodes(program, deal, g, direct_reduce_scatter, ring_reduce_scatter);
    if (g > 0) gather(g - 1);
  }
  gather(deal.segments - 1);
  if (topology.ranks() == 1) program.copy_to_output({0, 0, lanes});
  return std::move(program).finish(deal.direct ? "hierarchical(direct)" : "hierarchical(ring)");
}

}  // namespace

Algorithm hierarchical_algorithm() {
  return {"hierarchical", "node reduce-scatter, all_reduce of every strand between nodes, node all_gather (Herring, SC20)",
          supports, build};
}

}  // namespace shoal
