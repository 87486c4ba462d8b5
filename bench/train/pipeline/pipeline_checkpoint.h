// PipelineCheckpoint: --checkpoint and --resume of a network in a pipeline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

  /// With --resume PATH: brings `trainer` and `course`, which have made no step, to the state of the checkpoint: a folder that
  /// save() has made, or a file of the whole network, of a pipeline or of a training without one. Pipelines of other sizes or
  /// cuts take what they need; rank 0 then says in a line that generators start again. Collective. Errors, the same on all
  /// ranks: those of parallel::open_checkpoint(), load_tensors() and read_full(); invalid_argument for settings that differ,
  /// and for numbers that no training can have. Throws what StageTrainer::make_step() throws.
  Status resume(EpochPlan& course, StageTrainer& trainer) const;

 private:
  /// What --resume names.
  struct Saved {
    std::string path;  ///< of the folder or file
    nlohmann::json about;
    std::optional<parallel::StoredCheckpoint> parts;  ///< none: a file of the whole network
    parallel::WholeTensors whole;                     ///< in such a file
  };

  [[nodiscard]] nlohmann::json settings() const;
  [[nodiscard]] nlohmann::json layout() const;
  [[nodiscard]] nlohmann::json own_settings() const;
  [[nodiscard]] nlohmann::json full_settings(const EpochPlan& course) const;
  [[nodiscard]] Result<Saved> open() const;
  Status restore(const Saved& saved, StageTrainer& trainer, std::int64_t step, bool same_layout) const;

  const Job& job_;
  const PipelinePlan& plan_;
  const models::ModelInfo& model_;
  const data::Dataset& images_;
  const TrainOptions& options_;
};

}  // namespace shoal::train
