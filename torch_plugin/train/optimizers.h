// The optimizers of the trainer, and what they remember.
#pragma once

#include <map>
#include <string>

#include <torch/torch.h>

#include "torch_plugin/ddp/make_optimizer.h"
#include "torch_plugin/train/options.h"

namespace shoal::train {

/// Tensors by name.
using Tensors = std::map<std::string, at::Tensor>;

/// All optimizers that one replica uses: one, or one a parameter or slice of one (see ddp::MakeOptimizer). Holds no optimizer
/// itself. Thread rule: one thread.
class Optimizers {
 public:
  /// For options.optimizer "sgd", "adadelta" or "adam". Notes every optimizer that it makes; this object must outlive it, and
  /// they must live as long as the other functions are called.
  ddp::MakeOptimizer maker(const TrainOptions& options);

  /// For all updates from now on.
  void set_learning_rate(double rate);

  /// What the optimizers remember of the parameters of `model`, "<parameter>/<what>", as copies. Nothing before the first step.
  [[nodiscard]] Tensors state(const ::torch::nn::Module& model) const;
  /// Makes them remember it; what is not in `state` is forgotten. Throws c10::Error for what the optimizer does not know.
  void restore(const ::torch::nn::Module& model, const Tensors& state);

 private:
  std::vector<::torch::optim::Optimizer*> made_;
};

}  // namespace shoal::train
