// RanksByNode: the ranks of every node, sorted once for everything that is built on a Topology.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "src/topology/topology.h"

namespace shoal {

/// What an algorithm reads of a Topology. Sorting the ranks takes as long as building a short Program, so callers that build
/// several Programs make it once. Precondition: the nodes are numbered 0.. in order of their lowest rank.
class RanksByNode {
 public:
  /// Implicit: whoever builds one Program passes the Topology.
  RanksByNode(const Topology& topology);  // NOLINT(google-explicit-constructor)

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(node_of_rank_.size()); }
  [[nodiscard]] std::size_t nodes() const noexcept { return begins_.size() - 1; }
  /// Ranks of the largest node.
  [[nodiscard]] std::size_t largest() const noexcept { return largest_; }
  [[nodiscard]] std::size_t node_of(int rank) const noexcept {
    return static_cast<std::size_t>(node_of_rank_[static_cast<std::size_t>(rank)]);
  }
  /// The ranks of `node`, ascending.
  [[nodiscard]] std::span<const int> operator[](std::size_t node) const noexcept {
    return {sorted_.data() + begins_[node], sorted_.data() + begins_[node + 1]};
  }
  /// All ranks, node by node: neighbours in this order share a node if possible.
  [[nodiscard]] std::span<const int> in_order() const noexcept { return sorted_; }

 private:
  std::vector<int> node_of_rank_;
  std::vector<std::size_t> begins_;  // of every node in sorted_, and the end of the last one
  std::vector<int> sorted_;
  std::size_t largest_ = 0;
};

}  // namespace shoal
