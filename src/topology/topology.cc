#include "src/topology/topology.h"

#include <algorithm>
#include <map>

namespace shoal {

Topology Topology::uniform(int nodes, int ranks_per_node) {
  return ragged(std::vector<int>(static_cast<std::size_t>(std::max(nodes, 0)), ranks_per_node));
}

Topology Topology::ragged(const std::vector<int>& ranks_per_node) {
  Topology topology;
  int node = 0;
  for (const int ranks : ranks_per_node) {
    topology.node_of_rank.insert(topology.node_of_rank.end(), static_cast<std::size_t>(std::max(ranks, 0)), node);
    ++node;
  }
  return topology;
}

Topology Topology::restricted_to(std::span<const int> members) const {
  Topology group = *this;
  group.node_of_rank.clear();
  std::map<int, int> node_of;  // node here -> node of the group
  for (const int member : members) {
    const int node = node_of_rank[static_cast<std::size_t>(member)];
    group.node_of_rank.push_back(node_of.try_emplace(node, static_cast<int>(node_of.size())).first->second);
  }
  return group;
}

int Topology::nodes() const noexcept {
  return node_of_rank.empty() ? 0 : *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
}

std::vector<int> Topology::ranks_of_node(int node) const {
  std::vector<int> members;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (node_of_rank[static_cast<std::size_t>(rank)] == node) members.push_back(rank);
  }
  return members;
}

int Topology::local_rank(int rank) const {
  const auto end = node_of_rank.begin() + rank;
  return static_cast<int>(std::count(node_of_rank.begin(), end, node_of_rank[static_cast<std::size_t>(rank)]));
}

LinkClass Topology::link_class(int a, int b) const noexcept {
  if (a == b) return LinkClass::local;
  const bool same_node = node_of_rank[static_cast<std::size_t>(a)] == node_of_rank[static_cast<std::size_t>(b)];
  return same_node ? LinkClass::shared_memory : LinkClass::network;
}

std::string Topology::shape() const {
  std::vector<int> sizes(static_cast<std::size_t>(nodes()), 0);
  for (const int node : node_of_rank) ++sizes[static_cast<std::size_t>(node)];
  if (sizes.empty()) return "0x0";
  if (std::all_of(sizes.begin(), sizes.end(), [&](int size) { return size == sizes.front(); })) {
    return std::to_string(sizes.size()) + "x" + std::to_string(sizes.front());
  }
  std::string text;
  for (const int size : sizes) text += (text.empty() ? "" : "+") + std::to_string(size);
  return text;
}

}  // namespace shoal
