// The optimizer Adadelta, which LibTorch's C++ API lacks.
#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

namespace shoal::train {

struct AdadeltaOptions : ::torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  double lr = 1.0;
  double rho = 0.9;  ///< fraction of the running means that is kept in each step
  double eps = 1e-6;
  double weight_decay = 0;

  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};

/// The running means of a parameter.
struct AdadeltaState : ::torch::optim::OptimizerCloneableParamState<AdadeltaState> {
  at::Tensor square_avg;  ///< of squared gradients
  at::Tensor acc_delta;   ///< of squared updates
};

/// With g the gradient: E[g2] = rho E[g2] + (1 - rho) g2; d = g sqrt(E[d2] + eps) / sqrt(E[g2] + eps);
/// E[d2] = rho E[d2] + (1 - rho) d2; parameter -= lr d. As torch.optim.Adadelta in Python, operation by operation.
/// Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012, algorithm 1; the learning rate is PyTorch's addition.
class Adadelta : public ::torch::optim::Optimizer {
 public:
  Adadelta(std::vector<at::Tensor> parameters, const AdadeltaOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<AdadeltaOptions>(options)) {}

  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace shoal::train
