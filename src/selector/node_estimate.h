// The estimate for the ranks of one node, from their Programs: what they need of cores, wire and latency.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "src/schedule/program.h"
#include "src/simulate/simulator.h"
#include "src/topology/ranks_by_node.h"

namespace shoal {

/// A Program with what every estimate of it needs, whatever the costs.
struct SizedProgram {
  SizedProgram(Program of_rank, const RanksByNode& nodes, const Collective& collective);

  Program program;
  std::vector<std::size_t> bytes;  ///< that each step moves
  int flows = 0;                   ///< ranks of other nodes that send to this one
  int receives = 0;                ///< steps that receive
};

/// The time that the Programs of a node need a core, which also moves data through shared memory, and the network ports of
/// the node. The ranks share the ports; each has its own core.
struct Demand {
  double core_us = 0;
  double out_us = 0;
  double in_us = 0;

  /// Adds `ranks` ranks that need `rank` each.
  void add_ranks(const Demand& rank, int ranks) noexcept {
    core_us = std::max(core_us, rank.core_us);
    out_us += ranks * rank.out_us;
    in_us += ranks * rank.in_us;
  }
  [[nodiscard]] double busy_us() const noexcept { return std::max({core_us, out_us, in_us}); }
};

/// Of one rank.
Demand demand_of(const SizedProgram& rank, const CostModel& costs);

/// Ranks of a node that have one role: the Program of one of them serves for all.
struct EqualRanks {
  const SizedProgram* program = nullptr;
  int ranks = 1;
};

/// Latency along the longest chain of hops plus the busy time of the node. `demand`: that of all ranks of `node`.
double node_us(std::span<const EqualRanks> node, const Demand& demand, const CostModel& costs);

}  // namespace shoal
