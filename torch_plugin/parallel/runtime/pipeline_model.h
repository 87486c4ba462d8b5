// PipelineModel: training and evaluation of a model whose stages are on several ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/runtime/gradient_reduction.h"
#include "torch_plugin/parallel/runtime/options.h"
#include "torch_plugin/parallel/runtime/programs.h"
#include "torch_plugin/parallel/runtime/step_durations.h"
#include "torch_plugin/parallel/runtime/step_error.h"
#include "torch_plugin/parallel/runtime/step_header.h"
#include "torch_plugin/parallel/runtime/step_output.h"
#include "torch_plugin/parallel/runtime/step_run.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// A pipeline over the ranks of a communicator: rank r has stage r, or with several chunks the stages r, r + p, r + 2p, ...
///
///     shoal::parallel::PipelineModel model(stage, *communicator, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 8});
///     torch::optim::SGD optimizer(model.parameters(), 0.1);         // of the stages of this rank
///     optimizer.zero_grad();
///     StepOutput losses = model.step(images, targets, cross_entropy);  // images and targets are read on rank 0 only
///     optimizer.step();
///     at::Tensor loss = losses.reduce_mean();                       // the same on every rank
///
/// Gradients, losses and buffers are bit for bit those of one process that runs the same microbatches in the same order through
/// the same units and scales each loss by b_i / B before its backward.
///
/// Collective: all ranks make the same calls in the same order. The communicator carries nothing else between the ranks while a
/// call runs; Communicator::group() makes one for the pipeline.
///
/// Errors. Wrong arguments on rank 0: every rank throws c10::ValueError with the same text, nothing is started, and the
/// pipeline goes on. Everything else, wrong arguments on other ranks included: every rank throws StepError within the timeout,
/// and the communicator is closed. Later calls throw c10::ValueError with the first error. Gradients are incomplete after an
/// error.
///
/// A rank computes on the device of its parameters, all on one, which may be another one on each rank. Activations and
/// gradients travel as the option `messages` says, results are on the CPU; images and targets may be anywhere. Thread rule: one
/// thread.
class PipelineModel {
 public:
  /// Collective. `communicator` must outlive the object. Throws c10::ValueError with the same text on every rank for wrong or
  /// different options; the communicator stays open. Throws StepError where no streams can be made between the devices.
  PipelineModel(std::shared_ptr<Unit> stage, Communicator& communicator, PipelineOptions options);
  /// `chunks`: the stages of this rank, as many on each rank; more than one with the schedule `virtual` only. `gradients`: what
  /// averages them over the replicas of this pipeline in each step(), with the chunks in the same order; null if it has none.
  PipelineModel(std::vector<std::shared_ptr<Unit>> chunks, Communicator& communicator, PipelineOptions options,
                std::shared_ptr<GradientReduction> gradients = nullptr);
  PipelineModel(const PipelineModel&) = delete;
  PipelineModel& operator=(const PipelineModel&) = delete;

  /// Forward and backward of one batch; adds to the gradients. `images`: [B, ...], `targets`: [B, ...] or undefined; `loss` is
  /// called on the last stage's rank. Returns the loss of each microbatch, unscaled, on every rank. A parameter that requires a
  /// gradient and gets none from any microbatch is an error that names it.
  StepOutput step(const at::Tensor& images, const at::Tensor& targets, const Loss& loss);
  /// Forward of one batch in evaluation mode and without gradients; afterwards each module has its mode again. Returns the last
  /// stage's output of each microbatch, on every rank.
  StepOutput evaluate(const at::Tensor& images);
  /// Ends the steps: on rank 0 instead of a step or evaluation, which returns StepOutput::ended() on the other ranks; they may
  /// call end() as well. Calls may go on afterwards.
  void end();

  /// Of the stages of this rank.
  [[nodiscard]] std::vector<at::Tensor> parameters() const;
  /// Of this rank in the last step() or evaluate() that ended well.
  [[nodiscard]] const StepDurations& durations() const { return durations_; }
  /// What the user should know about the options, for example that fewer microbatches than ranks leave ranks idle.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  [[nodiscard]] bool is_first() const { return communicator_.rank() == 0; }
  [[nodiscard]] int last_rank() const { return communicator_.size() - 1; }
  [[nodiscard]] CallOptions call_options() const { return {.timeout = options_.timeout}; }
  void check_open() const;
  [[nodiscard]] StepPlace here(const char* action, int peer = -1) const;  ///< where no action of a stage runs
  [[noreturn]] void fail(StepPlace place, const Status& cause);
  /// Returns the header of rank 0, whose own it is `mine`: of kind `called` or end. Throws for every other kind.
  StepHeader exchange(StepKind called, const StepHeader& mine);
  /// Of the next step(); none where units draw from the generators of the process.
  [[nodiscard]] std::optional<MicrobatchSeed> seed_of_step() const;
  [[nodiscard]] std::vector<at::Tensor> run(const StepHeader& header, const at::Tensor& images, const at::Tensor& targets,
                                            const Loss& loss);
  StepOutput share_losses(const Microbatches& microbatches, const std::vector<at::Tensor>& losses);
  StepOutput share_outputs(const Microbatches& microbatches, const std::vector<at::Tensor>& outputs);
  /// After the first step, before any optimizer changes parameters: an error of any rank reaches all ranks in this step.
  void wait_for_all();
  void broadcast_from_last(void* data, std::size_t bytes, const char* what);

  std::vector<std::shared_ptr<Unit>> chunks_;
  Communicator& communicator_;
  const PipelineOptions options_;
  const std::shared_ptr<GradientReduction> gradients_;
  Programs programs_;
  const std::vector<bool> recomputes_;           // of each chunk: whether it may
  const std::unique_ptr<StageStreams> streams_;  // null: messages go through host memory
  bool has_warned_ = false;                      // of few values in batch normalisations
  std::int64_t step_;                            // number of the next step()
  StepHeader layouts_of_;                        // the kind of step and image that layouts_ are for
  CutLayouts layouts_;
  StepDurations durations_;
  std::string failure_;  // the first error; "" = open
};

}  // namespace shoal::parallel
