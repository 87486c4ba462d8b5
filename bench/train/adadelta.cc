#include "bench/train/adadelta.h"

namespace shoal::train {

at::Tensor Adadelta::step(LossClosure closure) {
  TORCH_CHECK_NOT_IMPLEMENTED(!closure, "Adadelta: a loss closure is not supported");
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const AdadeltaOptions&>(group.options());
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      std::unique_ptr<::torch::optim::OptimizerParamState>& slot = state_[parameter.unsafeGetTensorImpl()];
      if (!slot) {
        auto fresh = std::make_unique<AdadeltaState>();
        fresh->square_avg = at::zeros_like(parameter);
        fresh->acc_delta = at::zeros_like(parameter);
        slot = std::move(fresh);
      }
      auto& state = static_cast<AdadeltaState&>(*slot);
      at::Tensor gradient = parameter.grad();
      if (options.weight_decay != 0) gradient = gradient.add(parameter, options.weight_decay);
      state.square_avg.mul_(options.rho).addcmul_(gradient, gradient, 1 - options.rho);
      const at::Tensor deviation = state.square_avg.add(options.eps).sqrt_();
      const at::Tensor delta = state.acc_delta.add(options.eps).sqrt_().div_(deviation).mul_(gradient);
      state.acc_delta.mul_(options.rho).addcmul_(delta, delta, 1 - options.rho);
      parameter.add_(delta, -options.lr);
    }
  }
  return {};
}

}  // namespace shoal::train
