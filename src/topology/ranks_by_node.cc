#include "src/topology/ranks_by_node.h"

#include <algorithm>

namespace shoal {

RanksByNode::RanksByNode(const Topology& topology)
    : node_of_rank_(topology.node_of_rank),
      begins_(static_cast<std::size_t>(topology.nodes()) + 1, 0),
      sorted_(topology.node_of_rank.size()) {
  for (const int node : node_of_rank_) ++begins_[static_cast<std::size_t>(node) + 1];
  for (std::size_t node = 0; node < nodes(); ++node) {
    largest_ = std::max(largest_, begins_[node + 1]);
    begins_[node + 1] += begins_[node];
  }
  std::vector<std::size_t> next = begins_;
  for (std::size_t rank = 0; rank < sorted_.size(); ++rank) {
    sorted_[next[static_cast<std::size_t>(node_of_rank_[rank])]++] = static_cast<int>(rank);
  }
}

}  // namespace shoal
