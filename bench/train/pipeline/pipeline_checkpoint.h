// PipelineCheckpoint: --checkpoint and --resume of a network in a pipeline.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/train/data/dataset.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "bench/train/pipeline/plan.h"
#include "bench/train/pipeline/stage_trainer.h"
#include "torch_plugin/parallel/checkpoint/checkpoint.h"

namespace shoal::train {

/// Thread rule: one thread.
class PipelineCheckpoint {
 public:
  /// Everything must outlive the object.
  PipelineCheckpoint(const Job& job, const PipelinePlan& plan, const models::ModelInfo& model, const data::Dataset& images,
                     const TrainOptions& options)
      : job_(job), plan_(plan), model_(model), images_(images), options_(options) {}

  /// With --checkpoint FOLDER: saves to FOLDER/step-N, which replaces the newest one there. With --full-checkpoint also the
  /// file full.pt, for training without a pipeline. Collective. Errors, the same on all ranks: those of
  /// parallel::save_checkpoint().
  Status save(const EpochPlan& course, StageTrainer& trainer) const;

  /// With --resume FOLDER: brings `trainer` and `course`, which have made no step, to the state of the checkpoint. Pipelines of
  /// other sizes or cuts take what they need of each file; rank 0 then says in a line that generators start again. Collective.
  /// Errors, the same on all ranks: those of parallel::open_checkpoint() and load_tensors(); invalid_argument for settings that
  /// differ, and for numbers that no training can have. Throws what StageTrainer::make_step() throws.
  Status resume(EpochPlan& course, StageTrainer& trainer) const;

 private:
  [[nodiscard]] nlohmann::json settings() const;
  [[nodiscard]] nlohmann::json layout() const;
  Status write_full(const parallel::StoredCheckpoint& checkpoint, const EpochPlan& course, std::int64_t step) const;
  Status restore(const parallel::StoredCheckpoint& checkpoint, StageTrainer& trainer, std::int64_t step,
                 bool same_layout) const;

  const Job& job_;
  const PipelinePlan& plan_;
  const models::ModelInfo& model_;
  const data::Dataset& images_;
  const TrainOptions& options_;
};

}  // namespace shoal::train
