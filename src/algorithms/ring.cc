// ring: every rank sends to and receives from its neighbours only. All_reduce: 2 (p - 1) hops, 2 (p - 1) / p of the message
// out of every rank. All_gather and reduce_scatter: half of both, and reduce_scatter keeps two shares in scratch. The ring
// runs node by node, so that one edge in each direction crosses each node's wire.

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter});
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  const std::span<const int> members = nodes.in_order();
  const auto ranks = static_cast<std::uint32_t>(members.size());
  ProgramBuilder program(nodes.ranks(), collective, rank, ranks, 1);
  if (collective.kind != CollectiveKind::all_reduce) {
    const bool gathers = collective.kind == CollectiveKind::all_gather;
    (gathers ? ring_all_gather : ring_reduce_scatter)(program, members, own_chunks(members));
    program.copy_to_output(own_chunk(rank));
  } else {
    const Shares shares = one_chunk_each(members.size(), 0, 0);
    ring_reduce_scatter(program, members, shares);
    ring_all_gather(program, members, shares);
    if (ranks == 1) program.copy_to_output({0, 0, 1});
  }
  return std::move(program).finish("ring");
}

}  // namespace

Algorithm ring_algorithm() {
  return {"ring", "each rank sends to its neighbours only; least traffic, most hops (Patarasuk and Yuan, JPDC 2009)", supports,
          build};
}

}  // namespace shoal
