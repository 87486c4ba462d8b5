// dissemination: in round k every rank notifies the rank 2^k after it that all ranks of which it has been notified have
// arrived. log2(p) rounds.
//
// The messages are empty. Each is sent from and folded into chunk 0 of the output, which has no bytes either: the chunk
// stands for the set of ranks that have arrived, and its conflicts order the rounds.

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::barrier});
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  ProgramBuilder program(nodes.ranks(), collective, rank, 1, 1);
  dissemination_barrier(program, nodes.in_order(), {0, 0, 1});
  return std::move(program).finish("dissemination");
}

}  // namespace

Algorithm dissemination_algorithm() {
  return {"dissemination", "log2(p) rounds of empty messages (Hensgen, Finkel, Manber, IJPP 1988)", supports, build};
}

}  // namespace shoal
