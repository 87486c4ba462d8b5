// The schedule of a pipeline as a value: compute actions by kind, messages by rule, reductions of gradients.
#pragma once

#include <shoal/status.h>

#include "src/pipeline/action.h"
#include "src/pipeline/stage_times.h"

namespace shoal::pipeline {

/// The actions of every rank. A stage receives before it computes and sends right after; nothing is sent inside a rank. With
/// `reduces`, for pipelines that have replicas, each stage starts the reduction of its gradients after its last backward.
/// Only `interleaved` depends on `times`; with other kinds they may be empty.
/// Errors: those of check(shape), and for `interleaved` of check(times, shape).
Result<PipelineSchedule> make_schedule(const Shape& shape, const StageTimes& times = {}, bool reduces = false);

/// Inserts messages and, with `reduces`, reductions into compute actions.
PipelineSchedule complete(const Shape& shape, const std::vector<Actions>& computes, bool reduces);

}  // namespace shoal::pipeline
