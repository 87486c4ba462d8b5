// StageTrainer: the stages of one rank in a training, with optimizer and images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <shoal/communicator.h>

#include "bench/train/data/loader.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/optimizers.h"
#include "bench/train/options.h"
#include "bench/train/pipeline/plan.h"
#include "torch_plugin/parallel/gradients/gradient_norm.h"
#include "torch_plugin/parallel/profiler/allocation_meter.h"
#include "torch_plugin/parallel/replicas/replica_reduction.h"
#include "torch_plugin/parallel/runtime/pipeline_model.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"

namespace shoal::train {

/// What a rank did in some steps.
struct StageUse {
  std::int64_t steps = 0;
  double busy_s = 0;
  double waiting_s = 0;  ///< for messages, between the first and the last action of each step
  double step_s = 0;
};

/// The stages of this rank on the job's device, or its slices of them, its place in a pipeline and among the replicas of that.
/// The rank of the first stage loads the images. Every rank makes the whole network on the processor and keeps its own stages,
/// so that initial values are those of the network in one process. Collective: all ranks make the same calls in the same order.
/// Thread rule: one thread.
class StageTrainer {
 public:
  /// Everything must outlive the object. Errors: those of the parts and of the groups, on all ranks of a pipeline.
  static Result<std::unique_ptr<StageTrainer>> make(const Job& job, const PipelinePlan& plan, const models::ModelInfo& model,
                                                    const data::Dataset& images, const TrainOptions& options);
  StageTrainer(const StageTrainer&) = delete;
  StageTrainer& operator=(const StageTrainer&) = delete;
  ~StageTrainer();

  [[nodiscard]] const pipeline::Position& position() const { return position_; }
  /// Optimizer steps made.
  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] const std::vector<std::shared_ptr<parallel::Unit>>& chunks() const { return chunks_; }
  /// The chunks as one module: names begin with "chunk0.", "chunk1.", ...
  [[nodiscard]] const ::torch::nn::Module& stages() const { return *stages_; }
  /// The tensors of the network that are split: this rank has slice number position().slice.
  [[nodiscard]] const std::vector<parallel::SplitTensor>& split() const { return split_; }
  [[nodiscard]] Optimizers& optimizers() { return optimizers_; }

  /// From now on the images are those of the current pass of `course`, in which each replica is a rank.
  void begin_epoch(const EpochPlan& course);
  /// One optimizer step on the next batch. Returns its loss: of this pipeline, on all its ranks. Throws parallel::StepError and
  /// c10::Error; the other ranks of the pipeline and the replicas of this rank's stages then fail, too.
  double make_step(double learning_rate);
  /// `step` steps have been made by the training that stages, optimizer and course have been restored from.
  void continue_from(std::int64_t step);
  /// Since the last call.
  StageUse take_use() { return std::exchange(use_, {}); }
  /// The forwards and backwards of the last step.
  [[nodiscard]] const std::vector<parallel::ComputedAction>& last_actions() const { return model_->durations().actions; }
  /// The most bytes of tensors that this rank has had at the same time on its device, parameters and all that its steps need.
  [[nodiscard]] std::int64_t peak_bytes() const { return meter_.peak(); }

  /// Correct answers on the test images, divided by their number. Each pipeline evaluates its part, with the statistics of
  /// replica 0. Throws as make_step().
  Result<double> accuracy(const data::Dataset& test);
  /// Equal on the replicas of a stage or slice if their parameters are bitwise equal.
  [[nodiscard]] std::uint64_t fingerprint() const;
  /// After an error: the calls of the ranks that share layers with this one, and of those that clip with it, end with an error.
  void abort() noexcept;

 private:
  /// The stages as one module, for the norm of the gradient.
  struct Stages : ::torch::nn::Module {
    explicit Stages(const std::vector<std::shared_ptr<parallel::Unit>>& chunks);
  };

  StageTrainer(const Job& job, const PipelinePlan& plan, const data::Dataset& images, const TrainOptions& options);
  Status make_stages(const models::ModelInfo& model);
  void note_slices();
  Status make_groups();
  void make_optimizer();
  void clear_gradients();
  void clip_gradients();
  [[nodiscard]] bool loads() const { return position_.stage == 0; }
  [[nodiscard]] int replicas() const { return plan_.layout.size(pipeline::Axis::replica); }

  const Job& job_;
  const PipelinePlan& plan_;
  const data::Dataset& images_;
  const TrainOptions& options_;
  const pipeline::Position position_;
  parallel::AllocationMeter meter_;  // before everything that it counts
  std::vector<std::shared_ptr<parallel::Unit>> chunks_;
  std::shared_ptr<Stages> stages_;
  parallel::LayerSlices::Group tensor_;        // null: layers are whole
  std::vector<parallel::SplitTensor> split_;   // of the network
  std::vector<parallel::SplitTensor> slices_;  // parameters in stages_, by their names there
  std::unique_ptr<Communicator> pipeline_;
  std::shared_ptr<parallel::ReplicaReduction> reduction_;  // null: there are no replicas
  parallel::NormGroups norm_groups_;
  std::unique_ptr<parallel::PipelineModel> model_;
  Optimizers optimizers_;
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;
  std::unique_ptr<data::Loader> loader_;
  std::int64_t step_ = 0;
  StageUse use_;
};

}  // namespace shoal::train
