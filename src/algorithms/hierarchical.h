// The part of hierarchical that deals in shares: reduce_scatter and all_gather.
#pragma once

#include <span>
#include <string>

#include "src/algorithms/stages.h"

namespace shoal {

/// One of the reduce-scatters or all_gathers of stages.h.
using ShareMove = void (*)(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// The Program of `rank` for a reduce_scatter: `inside` on every node, then `between` the nodes; for an all_gather the
/// reverse order. On a single node only `inside` runs.
Program compose_shares(const RanksByNode& nodes, const Collective& collective, int rank, ShareMove inside, ShareMove between,
                       std::string name);

}  // namespace shoal
