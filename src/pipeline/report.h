// Report: what a partition or a schedule predicts, as tables of text.
#pragma once

#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/partitioner.h"
#include "src/pipeline/replay.h"

namespace shoal::pipeline {

/// A schedule and what replay() says of it.
struct Prediction {
  PipelineSchedule schedule;
  Replay replay;
};

/// Errors: those of make_schedule() and replay().
Result<Prediction> predict(const Shape& shape, const StageTimes& times);

/// The stages of `partition`: units by name, time, share of all computing, bytes, bytes at the cut; the step time and bubble
/// that `prediction` says; and which stage decides.
std::string partition_table(const Profile& profile, const PartitionRequest& request, const Partition& partition,
                            const Prediction& prediction);

/// A line that names the stages or units which recompute; "" where none does. `units`: the names of the chain's units.
std::string recomputation_line(const Partition& partition, const std::vector<std::string>& units);

/// A line for each rank: idle time, microbatches held, messages and bytes sent in a step.
std::string rank_table(const Prediction& prediction);

/// A line for each kind of schedule that `shape` can have with these times: step, bubble, microbatches held; the fastest first.
std::string comparison_table(const Shape& shape, const StageTimes& times);

}  // namespace shoal::pipeline
