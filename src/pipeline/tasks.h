// Tasks: a PipelineSchedule as a TaskGraph, which SimGrid runs with ranks that share their wires.
#pragma once

#include "src/pipeline/action.h"
#include "src/pipeline/stage_times.h"
#include "src/simulate/task_graph.h"

namespace shoal::pipeline {

/// One worker for each rank, a task for each compute action, one for each message. Each rank has a wire up and one down, shared
/// by all its messages in that direction: two messages that replay() lets travel at their full rate take longer here. A
/// reduction is a task of a second worker of the rank. `bytes_per_us`: of each wire; 0 = messages take their latency only.
/// Errors: those of check(times, shape); invalid_argument beyond kMaxTasks.
Result<TaskGraph> task_graph(const PipelineSchedule& schedule, const StageTimes& times, double bytes_per_us);

}  // namespace shoal::pipeline
