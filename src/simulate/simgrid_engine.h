// The SimGrid engine: runs a TaskGraph on simulated cores and wires.
#pragma once

#include <functional>
#include <vector>

#include <shoal/status.h>

#include "src/simulate/task_graph.h"

namespace shoal {

/// When each worker, and the last of them, is done.
struct GraphRun {
  double total_us = 0;
  std::vector<double> worker_us;  ///< of each worker
};

/// Runs `graph` on SimGrid's fluid model of cores and wires: activities on one wire or core share it max-min fairly.
/// Deterministic. SimGrid supports one simulation per process, so a child process runs it; call from a process with one
/// thread. `progress` gets the fraction of the tasks that are done, a few times a second.
/// Source: Casanova, Giersch, Legrand, Quinson, Suter, "Versatile, scalable, and accurate simulation of distributed
/// applications and platforms", JPDC 74(10), 2014. Errors: internal if tasks wait forever or SimGrid fails, system_error if
/// the child process cannot be created.
Result<GraphRun> run_on_simgrid(const TaskGraph& graph, const std::function<void(double)>& progress = {});

}  // namespace shoal
