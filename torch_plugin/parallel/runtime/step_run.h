// StepRun: executes the actions of one rank for one step.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/batch_norm/batch_norm_observer.h"
#include "torch_plugin/parallel/batch_norm/deferred_statistics.h"
#include "torch_plugin/parallel/random/unit_seeds.h"
#include "torch_plugin/parallel/runtime/few_values.h"
#include "torch_plugin/parallel/runtime/gradient_reduction.h"
#include "torch_plugin/parallel/runtime/options.h"
#include "torch_plugin/parallel/runtime/step_durations.h"
#include "torch_plugin/parallel/runtime/step_error.h"
#include "torch_plugin/parallel/runtime/step_messages.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// The loss of one microbatch from the last stage's output and the targets of its images (undefined where the step has none):
/// one finite number.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

/// What a step works on.
struct StepTask {
  bool trains = true;
  const Microbatches& microbatches;
  const pipeline::Shape& shape;
  const pipeline::Actions& actions;                  ///< of this rank
  const std::vector<std::shared_ptr<Unit>>& chunks;  ///< stage s is chunk s / ranks
  const std::vector<bool>& recomputes;               ///< of each chunk, whether it may run forward again in the backward
  at::Device device;                                 ///< where the stages compute
  StageStreams* streams;                             ///< of the messages; null: they are in host memory
  at::Tensor images;                                 ///< on rank 0
  at::Tensor targets;                                ///< on rank 0
  TensorLayout target_layout;                        ///< on all ranks
  const Loss& loss;                                  ///< used on the last stage's rank, in training
  LossReduction reduction = LossReduction::mean;
  BatchNormStatistics batch_norm = BatchNormStatistics::microbatch;
  bool looks_for_few_values = false;  ///< in training: for StepRun::few_values()
  /// In training: for the random numbers of the units, if they have seeds; with the microbatch 0.
  std::optional<MicrobatchSeed> seed = std::nullopt;
  GradientReduction* gradients = nullptr;  ///< in training, of stages that have replicas
};

/// Each received activation becomes a fresh leaf; its gradient goes back to the stage before. What a microbatch keeps is freed
/// after its backward, its output already when it is sent. Thread rule: one thread.
class StepRun {
 public:
  StepRun(Communicator& communicator, const StepTask& task, CutLayouts& layouts, StepMessages::Deadline deadline);

  /// Runs the step once. Returns on the last stage's rank the unscaled loss of each microbatch, or in evaluation its output;
  /// else nothing. An error aborts the communicator and is thrown as StepError with the place.
  std::vector<at::Tensor> run();
  /// After run().
  [[nodiscard]] const StepDurations& durations() const { return durations_; }
  /// After run(), if the task wants it: the batch normalisations of this rank that had few values in the last microbatch.
  [[nodiscard]] const std::vector<FewValues>& few_values() const { return few_values_; }

 private:
  /// What a stage holds of a microbatch.
  struct Held {
    at::Tensor input;              // leaf
    at::Tensor output;             // until it is sent; of the last stage in training: the scaled loss
    ::torch::autograd::Edge root;  // of the graph; invalid: there is none
    at::Tensor output_gradient;    // arrives before the backward
    at::Tensor input_gradient;     // leaves after it
  };

  void run_all();
  void run_action(const pipeline::Action& action);
  void compute(const pipeline::Action& action);
  void forward(const pipeline::Action& action);
  /// Runs the chunk of a stage.
  at::Tensor output_of(const pipeline::Action& action, const at::Tensor& input);
  void on_batch_norm(const pipeline::Action& action, const BatchNormCall& call);
  at::Tensor input_of(const pipeline::Action& action);
  at::Tensor scaled_loss(const at::Tensor& output, int microbatch);
  void backward(const pipeline::Action& action);
  /// Throws c10::ValueError where a parameter of `stage` needs a gradient and none of the step's microbatches gave it one.
  void check_gradients(int stage) const;
  void send(const pipeline::Action& action);
  Held& held(int stage, int microbatch) { return held_[{stage, microbatch}]; }
  [[nodiscard]] bool is_last(int stage) const { return stage == task_.shape.stages() - 1; }
  [[nodiscard]] const std::shared_ptr<Unit>& chunk_of(int stage) const {
    return task_.chunks[static_cast<std::size_t>(stage / task_.shape.ranks)];
  }
  /// Whether `stage` exists and is on this rank.
  [[nodiscard]] bool is_here(int stage) const;
  /// Whether `stage`, of this rank, runs forward again in the backward.
  [[nodiscard]] bool recomputes(int stage) const;
  void set_place(const pipeline::Action& action);

  Communicator& communicator_;
  const StepTask& task_;
  const std::vector<int> most_held_;  // microbatches, by stage
  StepMessages messages_;
  StepPlace place_;
  std::map<std::pair<int, int>, Held> held_;  // by stage and microbatch
  at::Tensor targets_;                        // on the last stage's rank
  std::vector<at::Tensor> results_;
  std::optional<DeferredStatistics> statistics_;
  std::vector<FewValues> few_values_;
  std::chrono::steady_clock::time_point start_;
  StepDurations durations_;
};

}  // namespace shoal::parallel
