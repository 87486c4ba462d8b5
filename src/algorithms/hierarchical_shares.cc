// hierarchical, for messages dealt in shares. The s-th ranks of all nodes form strand s and exchange its shares between the
// nodes on a rail of their own; on a smaller node rank s mod L takes that place. So a node sends each other node one share
// for each rank of the receiving node (reduce_scatter) or of its own (all_gather), whatever the number of ranks. This is the
// minimum.
//
// A reduce_scatter folds inside the node first: a rank keeps a strand, its part of the message, in scratch.

#include <algorithm>
#include <utility>

#include "src/algorithms/hierarchical.h"

namespace shoal {
namespace {

/// The ranks that hold strand `s`, one on each node.
std::vector<int> holders(const RanksByNode& nodes, std::size_t s) {
  std::vector<int> members(nodes.nodes());
  for (std::size_t n = 0; n < members.size(); ++n) members[n] = nodes[n][s % nodes[n].size()];
  return members;
}

/// Adds the share of `node` of strand `s` to the open row, if the node has one.
void add_share(Shares& shares, const RanksByNode& nodes, std::size_t node, std::size_t s) {
  if (s < nodes[node].size()) shares.add({0, static_cast<std::uint32_t>(nodes[node][s]), 1});
}

/// By node: its share of strand `s`, if it has one.
Shares by_node(const RanksByNode& nodes, std::size_t s) {
  Shares shares;
  shares.reserve(nodes.nodes(), nodes.nodes());
  for (std::size_t n = 0; n < nodes.nodes(); ++n) {
    add_share(shares, nodes, n, s);
    shares.end_row();
  }
  return shares;
}

/// By rank of node `node`: the shares of all strands that it holds.
Shares by_holder(const RanksByNode& nodes, std::size_t node) {
  const std::size_t local_ranks = nodes[node].size();
  Shares shares;
  shares.reserve(local_ranks, static_cast<std::size_t>(nodes.ranks()));
  for (std::size_t local = 0; local < local_ranks; ++local) {
    for (std::size_t s = local; s < nodes.largest(); s += local_ranks) {
      for (std::size_t n = 0; n < nodes.nodes(); ++n) add_share(shares, nodes, n, s);
    }
    shares.end_row();
  }
  return shares;
}

}  // namespace

Program compose_shares(const RanksByNode& nodes, const Collective& collective, int rank, ShareMove inside, ShareMove between,
                       std::string name) {
  const std::size_t node = nodes.node_of(rank);
  const std::span<const int> mine = nodes[node];
  const auto local = static_cast<std::size_t>(std::ranges::find(mine, rank) - mine.begin());
  const Shard own = own_chunk(rank);
  ProgramBuilder program(nodes.ranks(), collective, rank, static_cast<std::uint32_t>(nodes.ranks()), 1);
  const auto in_node = [&] { inside(program, mine, by_holder(nodes, node)); };
  const auto between_nodes = [&] {
    for (std::size_t s = local; nodes.nodes() > 1 && s < nodes.largest(); s += mine.size()) {
      between(program, holders(nodes, s), by_node(nodes, s));
    }
  };
  if (collective.kind == CollectiveKind::reduce_scatter) {
    program.keep_shares_apart();
    in_node();
    between_nodes();
    program.copy_to_output(own);
  } else {
    // First, so that this share can travel together with received ones.
    program.copy_to_output(own);
    between_nodes();
    in_node();
  }
  return std::move(program).finish(std::move(name));
}

}  // namespace shoal
