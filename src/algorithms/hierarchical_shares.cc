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

/// The shares of a strand by node, or the shares of all strands that each rank of a node holds.
class Strands {
 public:
  explicit Strands(const Topology& topology) : nodes_(ranks_of_nodes(topology)) {
    for (const auto& ranks : nodes_) count_ = std::max(count_, ranks.size());
  }

  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  [[nodiscard]] const std::vector<std::vector<int>>& nodes() const noexcept { return nodes_; }

  /// The ranks that hold strand `s`, one on each node.
  [[nodiscard]] std::vector<int> holders(std::size_t s) const {
    std::vector<int> members;
    for (const auto& ranks : nodes_) members.push_back(ranks[s % ranks.size()]);
    return members;
  }
  /// By node: its share of strand `s`, if it has one.
  [[nodiscard]] Shares by_node(std::size_t s) const {
    Shares shares(nodes_.size());
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (s < nodes_[n].size()) shares[n].push_back({0, static_cast<std::uint32_t>(nodes_[n][s]), 1});
    }
    return shares;
  }
  /// By rank of node `node`: the shares of all strands that it holds.
  [[nodiscard]] Shares by_holder(std::size_t node) const {
    Shares shares(nodes_[node].size());
    for (std::size_t s = 0; s < count_; ++s) {
      for (const auto& part : by_node(s)) {
        auto& held = shares[s % shares.size()];
        held.insert(held.end(), part.begin(), part.end());
      }
    }
    return shares;
  }

 private:
  std::vector<std::vector<int>> nodes_;
  std::size_t count_ = 0;
};

}  // namespace

Program compose_shares(const Topology& topology, const Collective& collective, int rank, ShareMove inside, ShareMove between,
                       std::string name) {
  const Strands strands(topology);
  const auto node = static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(rank)]);
  const std::vector<int>& mine = strands.nodes()[node];
  const Shard own{0, static_cast<std::uint32_t>(rank), 1};
  ProgramBuilder program(topology, collective, rank, static_cast<std::uint32_t>(topology.ranks()), 1);
  const auto in_node = [&] { inside(program, mine, strands.by_holder(node)); };
  const auto between_nodes = [&] {
    for (std::size_t s = 0; strands.nodes().size() > 1 && s < strands.count(); ++s) {
      between(program, strands.holders(s), strands.by_node(s));
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
