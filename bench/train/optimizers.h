// The optimizers of the trainer, and what they remember.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "bench/train/optimizer_state.h"
#include "bench/train/options.h"
#include "bench/train/undo.h"
#include "torch_plugin/ddp/make_optimizer.h"

namespace shoal::train {

/// All optimizers that one replica uses: one, or one a parameter or slice of one (see ddp::MakeOptimizer). Holds no optimizer
/// itself. Thread rule: one thread.
class Optimizers {
 public:
  /// For options.optimizer "sgd", "adadelta" or "adam"; with options.survives() they can undo a step. Notes every optimizer
  /// that it makes; this object must outlive it, and they must live as long as the other functions are called.
  ddp::MakeOptimizer maker(const TrainOptions& options);

  /// Updates that every parameter has had since restore() or the beginning. Only with options.survives().
  [[nodiscard]] std::int64_t complete_steps() const;
  /// Takes back what goes beyond `steps`. Throws c10::Error where that is more than one step of a parameter.
  void go_back_to(std::int64_t steps);

  /// For all updates from now on.
  void set_learning_rate(double rate);

  /// What the optimizers remember of the parameters of `model`, "<parameter>/<what>", as copies. Nothing before the first step.
  [[nodiscard]] Tensors state(const ::torch::nn::Module& model) const;
  /// Makes them remember it; what is not in `state` is forgotten. Throws c10::Error for what the optimizer does not know.
  void restore(const ::torch::nn::Module& model, const Tensors& state);

 private:
  std::vector<::torch::optim::Optimizer*> made_;
  std::vector<Undoable*> undoable_;
};

}  // namespace shoal::train
