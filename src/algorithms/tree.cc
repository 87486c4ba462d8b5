// tree: broadcast and reduce along binomial trees, one between the nodes and one inside each: log2 hops, every wire between
// nodes crossed once. Gather and scatter along one binomial tree over the ranks node by node: inner ranks keep the shares of
// their subtree, up to half of the message, in scratch. All_reduce up and down two binary trees with half of the message
// each, tile by tile: 2 floor(log2 p) hops, at most 2 n bytes out of a rank and at most four neighbours in the trees, for
// every p.

#include <algorithm>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// Half of the message per tree is sent in parts, so that the parts of both children arrive interleaved and not one child
// after the other.
constexpr std::size_t kPartBytes = 256 << 10;
constexpr std::size_t kMaxParts = 16;

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::broadcast, CollectiveKind::all_reduce, CollectiveKind::reduce,
                                       CollectiveKind::gather, CollectiveKind::scatter});
}

Program build_shares(const RanksByNode& nodes, const Collective& collective, int rank) {
  const std::vector<int> members = ranks_in_turn_from(nodes, collective.root);
  ProgramBuilder program(nodes.ranks(), collective, rank, static_cast<std::uint32_t>(members.size()), 1);
  if (collective.kind == CollectiveKind::gather) {
    binomial_gather(program, members);
    if (rank == collective.root) program.copy_to_output(own_chunk(rank));
  } else {
    binomial_scatter(program, members);
    program.copy_to_output(own_chunk(rank));
  }
  return std::move(program).finish("tree");
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  if (collective.kind == CollectiveKind::all_reduce) {
    const auto parts =
        static_cast<std::uint32_t>(std::clamp<std::size_t>(collective.input_bytes() / 2 / kPartBytes, 1, kMaxParts));
    ProgramBuilder program(nodes.ranks(), collective, rank, 2 * parts, 1);
    two_tree_all_reduce(program, nodes.in_order(), {0, 0, 2 * parts});
    if (nodes.ranks() == 1) program.copy_to_output({0, 0, 2 * parts});
    return std::move(program).finish("tree");
  }
  if (deals_in_shares(collective.kind)) return build_shares(nodes, collective, rank);
  const std::vector<int> node = ranks_of_node_from(nodes, nodes.node_of(rank), collective.root);
  const auto leaders = [&] { return node.front() == rank ? leaders_from(nodes, collective.root) : std::vector<int>(); };

  ProgramBuilder program(nodes.ranks(), collective, rank, 1, 1);
  if (collective.kind == CollectiveKind::reduce) {
    binomial_reduce(program, node, {0, 0, 1});
    binomial_reduce(program, leaders(), {0, 0, 1});
    if (nodes.ranks() == 1) program.copy_to_output({0, 0, 1});
  } else {
    binomial_broadcast(program, leaders(), {0, 0, 1});
    binomial_broadcast(program, node, {0, 0, 1});
  }
  return std::move(program).finish("tree");
}

/// One level inside the nodes and all levels between them; deeper levels inside a node cost little in comparison.
int hidden_hops(const Topology& topology) {
  const int nodes = topology.nodes();
  return two_tree_hidden_hops(nodes > 1 ? std::min(topology.ranks(), 2 * nodes) : topology.ranks());
}

}  // namespace

Algorithm tree_algorithm() {
  return {"tree", "two binary trees, half of the message up and down each (Sanders et al., ParCo 2009); else binomial",
          supports, build, hidden_hops};
}

}  // namespace shoal
