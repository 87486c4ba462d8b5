// Predicted time of a collective on many nodes of a platform.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include <shoal/status.h>

#include "src/algorithms/algorithm.h"
#include "src/simulate/platform.h"
#include "src/simulate/task_graph.h"

namespace shoal {

struct ScalePrediction {
  std::string algorithm;  ///< name of the Program
  double total_us = 0;
  double bus_gbyte_s = 0;  ///< nccl-tests' definition
  std::size_t tasks = 0;   ///< simulated
  std::string how;         ///< "every node", or "one node for all" where the nodes are alike
};

/// Simulates `collective` by `algorithm` on `topology`, whose nodes are those of `platform`. Small schedules are simulated as
/// a whole. For larger ones whose nodes are alike, one node is simulated and represents all (see Symmetry). That is exact for
/// rings. It is too fast by up to a tenth if many flows meet (real nodes fall out of step), and by up to a quarter if nodes
/// take their chunks in different orders (circulant, halving), in sizes where latency and bandwidth count alike. Errors: as
/// build_schedule(), check() and run_on_simgrid(); unsupported if the schedule is too large for either way.
Result<ScalePrediction> predict_at_scale(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                                         const Platform& platform, const std::function<void(double)>& progress = {});

/// Whether one node of the schedule can represent all, found by comparing what some of the nodes send to each node.
/// Symmetry::none if it cannot. Precondition: algorithm.supports() is ok.
Symmetry find_symmetry(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// The Programs of the ranks of node 0 alone. Precondition: algorithm.supports() is ok.
Schedule schedule_of_first_node(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Bytes that nccl-tests counts for the bus bandwidth: what the busiest link must carry, all ranks being equal.
double bus_bytes(const Collective& collective, int ranks);

}  // namespace shoal
