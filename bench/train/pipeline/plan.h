// PipelinePlan: what all ranks know before a network is trained in a pipeline.
#pragma once

#include <vector>

#include <shoal/status.h>

#include "bench/train/data/dataset.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "src/pipeline/config.h"
#include "src/pipeline/layout.h"
#include "src/pipeline/partitioner.h"
#include "src/pipeline/report.h"

namespace shoal::train {

/// The same on all ranks. A value.
struct PipelinePlan {
  pipeline::Config config;
  pipeline::Layout layout;
  pipeline::Profile profile;
  pipeline::PartitionRequest request;
  pipeline::Partition partition;
  pipeline::Prediction prediction;

  /// The stages of the rank at `stage` of the pipeline, as numbers from 0.
  [[nodiscard]] std::vector<int> stages_at(int stage) const;
};

/// Compares the options of all ranks; then rank 0 reads the files and measures the network unless a profile is given, together
/// with the ranks that share its layers. All ranks measure the link between them unless it is given, and cut the network unless
/// a partition is given. The images of a microbatch are those of options.batch. Prints the partition on rank 0, and warnings
/// about differences between profile and run on its standard error. Collective.
///
/// Errors, the same on all ranks: mismatch that names the first setting in which ranks differ; invalid_argument and unsupported
/// for settings, files, numbers of ranks, options of shoal_train that a pipeline does not have, and a network or partition that
/// does not fit; those of the profiler.
Result<PipelinePlan> make_plan(const Job& job, const models::ModelInfo& model, const data::Dataset& images,
                               const TrainOptions& options);

}  // namespace shoal::train
