// one_shot: every rank sends its whole message to every other rank. One hop, so the lowest latency; p - 1 times the traffic.
//
// Every rank folds the same operands by itself. Results are bitwise equal only because an engine folds consecutive
// recv_reduce steps in ascending rank order (see Program).

#include <numeric>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce});
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  std::vector<int> members(nodes.in_order().size());
  std::iota(members.begin(), members.end(), 0);
  ProgramBuilder program(nodes.ranks(), collective, rank, 1, 1);
  program.fold_across_links();
  one_shot_all_reduce(program, members, {0, 0, 1});
  if (nodes.ranks() == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("one_shot");
}

}  // namespace

Algorithm one_shot_algorithm() {
  return {"one_shot", "every rank sends its message to every other rank; one hop, for the smallest messages", supports, build};
}

}  // namespace shoal
