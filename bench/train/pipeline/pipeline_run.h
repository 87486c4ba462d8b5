// The training run of a network in a pipeline.
#pragma once

#include <atomic>

#include "bench/train/data/locate.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "bench/train/pipeline/plan.h"
#include "bench/train/trainer.h"

namespace shoal::train {

/// Trains the network as `plan` says, one replica of it for each pipeline, in turns of options.block steps. The first two steps
/// are not measured. Collective. Ends early, with the results so far, when `stop` becomes true. After a failure all ranks end
/// with an error that names the place: the rank and the stage are those in its pipeline.
TrainOutcome train_pipeline(Job& job, const PipelinePlan& plan, const models::ModelInfo& model, const data::Located& images,
                            const TrainOptions& options, const std::atomic<bool>& stop);

}  // namespace shoal::train
