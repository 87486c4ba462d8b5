// recursive_doubling: log2(p) exchanges of the whole message or, in an all_gather, of everything that a rank holds so far.
// Few hops and few peers, for small messages over many ranks.

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology& topology, const Collective& collective) {
  if (collective.kind == CollectiveKind::all_gather) {
    if (Status status = needs_power_of_two(topology, collective.kind); !status.ok()) return status;
  }
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::all_gather});
}

/// Neighbours exchange first, and the shares that two ranks hold together always form one run.
Program build_all_gather(const RanksByNode& nodes, const Collective& collective, int rank) {
  const std::vector<int> members = ranks_with_bits_reversed(nodes.ranks());
  ProgramBuilder program(nodes.ranks(), collective, rank, static_cast<std::uint32_t>(members.size()), 1);
  program.copy_to_output(own_chunk(rank));
  doubling_all_gather(program, members, own_chunks(members));
  return std::move(program).finish("recursive_doubling");
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  if (collective.kind == CollectiveKind::all_gather) return build_all_gather(nodes, collective, rank);
  ProgramBuilder program(nodes.ranks(), collective, rank, 1, 1);
  // Node by node: the first exchanges, at distance 1, 2, ..., stay inside a node where node sizes allow it.
  recursive_doubling_all_reduce(program, nodes.in_order(), {0, 0, 1});
  if (nodes.ranks() == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("recursive_doubling");
}

}  // namespace

Algorithm recursive_doubling_algorithm() {
  return {"recursive_doubling", "log2(p) exchanges of the whole message (Thakur et al., IJHPCA 2005)", supports, build};
}

}  // namespace shoal
