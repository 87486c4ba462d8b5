#include "bench/train/optimizer_state.h"

#include "bench/train/adadelta.h"
#include "bench/train/epoch_plan.h"

namespace shoal::train {

using ::torch::optim::OptimizerParamState;

bool is_like(const at::Tensor& tensor, const at::Tensor& like) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.scalar_type() == like.scalar_type() &&
         tensor.sizes() == like.sizes();
}

Tensors to_tensors(const OptimizerParamState& state) {
  if (const auto* sgd = dynamic_cast<const ::torch::optim::SGDParamState*>(&state)) {
    return sgd->momentum_buffer().defined() ? Tensors{{"momentum_buffer", sgd->momentum_buffer()}} : Tensors{};
  }
  if (const auto* adam = dynamic_cast<const ::torch::optim::AdamParamState*>(&state)) {
    return {
        {"step", at::scalar_tensor(adam->step(), at::kLong)}, {"exp_avg", adam->exp_avg()}, {"exp_avg_sq", adam->exp_avg_sq()}};
  }
  const auto& adadelta = dynamic_cast<const AdadeltaState&>(state);
  return {{"square_avg", adadelta.square_avg}, {"acc_delta", adadelta.acc_delta}};
}

std::unique_ptr<OptimizerParamState> to_state(const ::torch::optim::Optimizer& optimizer, const Tensors& tensors) {
  const auto get = [&tensors](const char* name) {
    const auto found = tensors.find(name);
    TORCH_CHECK(found != tensors.end(), "the optimizer's state has no ", name, ": it belongs to another optimizer");
    return found->second.clone();
  };
  if (dynamic_cast<const ::torch::optim::SGD*>(&optimizer) != nullptr) {
    auto state = std::make_unique<::torch::optim::SGDParamState>();
    if (!tensors.empty()) state->momentum_buffer(get("momentum_buffer"));  // none without momentum
    return state;
  }
  if (dynamic_cast<const ::torch::optim::Adam*>(&optimizer) != nullptr) {
    auto state = std::make_unique<::torch::optim::AdamParamState>();
    const at::Tensor step = get("step");
    TORCH_CHECK(is_like(step, at::scalar_tensor(0, at::kLong)), "the optimizer's state has a step that is not a whole number");
    TORCH_CHECK(step.item<std::int64_t>() > 0 && step.item<std::int64_t>() <= EpochPlan::kMostSteps,
                "the optimizer's state is for ", step.item<std::int64_t>(), " steps");
    state->step(step.item<std::int64_t>());
    state->exp_avg(get("exp_avg"));
    state->exp_avg_sq(get("exp_avg_sq"));
    return state;
  }
  auto state = std::make_unique<AdadeltaState>();
  state->square_avg = get("square_avg");
  state->acc_delta = get("acc_delta");
  return state;
}

}  // namespace shoal::train
