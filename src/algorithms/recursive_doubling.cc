// recursive_doubling: log2(p) exchanges of the whole message. Few hops and few peers, for small messages over many ranks.

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce});
}

Program build(const Topology& topology, const Collective& collective, int rank) {
  ProgramBuilder program(topology, collective, rank, 1, 1);
  // Node by node: the first exchanges, at distance 1, 2, ..., stay inside a node where node sizes allow it.
  recursive_doubling_all_reduce(program, ranks_node_by_node(topology), {0, 0, 1});
  if (topology.ranks() == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("recursive_doubling");
}

}  // namespace

Algorithm recursive_doubling_algorithm() {
  return {"recursive_doubling", "log2(p) exchanges of the whole message (Thakur et al., IJHPCA 2005)", supports, build};
}

}  // namespace shoal
