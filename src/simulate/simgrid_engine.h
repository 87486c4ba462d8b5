// The SimGrid engine: runs a TaskGraph on simulated cores and wires.
#pragma once

#include <functional>
#include <vector>

#include <shoal/status.h>

#include "src/simulate/task_graph.h"

namespace shoal {

/// When everybody is done.
struct GraphRun {
  double total_us = 0;
  std::vector<double> worker_us;  ///< of each worker
};

/// Runs `graph` on SimGrid's fluid model of cores and wires: activities that meet on a wire or a core share it max-min fairly.
/// Deterministic. SimGrid holds one simulation a process, so a child process runs it; call from a process with one thread.
/// `progress` gets the part of the tasks that are done, a few times a second.
/// Source: Casanova, Giersch, Legrand, Quinson, Suter, "Versatile, scalable, and accurate simulation of distributed
/// applications and platforms", JPDC 74(10), 2014. Errors: internal where tasks wait for ever or SimGrid fails, system_error
/// where there is no child process.
Result<GraphRun> run_on_simgrid(const TaskGraph& graph, const std::function<void(double)>& progress = {});

}  // namespace shoal
