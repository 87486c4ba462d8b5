// tree: binomial trees, one between the nodes and one inside each: log2 hops, every wire between nodes crossed once.

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::broadcast});
}

Program build(const Topology& topology, const Collective& collective, int rank) {
  const std::vector<std::vector<int>> nodes = ranks_of_nodes_from(topology, collective.root);
  std::vector<int> leaders;
  for (const auto& ranks : nodes) leaders.push_back(ranks.front());

  ProgramBuilder program(topology, collective, rank, 1, 1);
  binomial_broadcast(program, leaders, {0, 0, 1});
  for (const auto& ranks : nodes) binomial_broadcast(program, ranks, {0, 0, 1});
  return std::move(program).finish("tree");
}

}  // namespace

Algorithm tree_algorithm() { return {"tree", "binomial trees, between the nodes and inside each; few hops", supports, build}; }

}  // namespace shoal
