// The optimizers of the trainer, and their state.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "bench/train/optimizer_state.h"
#include "bench/train/options.h"
#include "bench/train/undo.h"
#include "torch_plugin/ddp/make_optimizer.h"

namespace shoal::train {

/// All optimizers that one replica uses: one for all parameters, or one for each parameter or slice (see ddp::MakeOptimizer).
/// Does not own the optimizers. Thread rule: one thread.
class Optimizers {
 public:
  /// For options.optimizer "sgd", "adadelta" or "adam"; with options.survives() they can undo a step. Registers every
  /// optimizer that it makes; this object must outlive it, and the optimizers must exist as long as the other functions are
  /// called.
  ddp::MakeOptimizer maker(const TrainOptions& options);

  /// Number of updates that every parameter has had since restore() or the beginning. Only with options.survives().
  [[nodiscard]] std::int64_t complete_steps() const;
  /// Undoes updates beyond `steps`. Throws c10::Error if that is more than one step of a parameter.
  void go_back_to(std::int64_t steps);

  /// Applies to all later updates.
  void set_learning_rate(double rate);

  /// The optimizers' state for the parameters of `model`, "<parameter>/<what>", as copies. Empty before the first step.
  [[nodiscard]] Tensors state(const ::torch::nn::Module& model) const;
  /// Restores this state; state that is not in `state` is discarded. Throws c10::Error for state that the optimizer does not
  /// have.
  void restore(const ::torch::nn::Module& model, const Tensors& state);

 private:
  std::vector<::torch::optim::Optimizer*> made_;
  std::vector<Undoable*> undoable_;
};

}  // namespace shoal::train
