#include "torch_plugin/train/optimizers.h"

#include <functional>
#include <unordered_map>
#include <utility>

#include "torch_plugin/train/adadelta.h"

namespace shoal::train {
namespace {

using ::torch::optim::OptimizerParamState;

std::unique_ptr<::torch::optim::Optimizer> make(const TrainOptions& options, std::vector<at::Tensor> parameters) {
  const double rate = options.start_learning_rate();
  const double decay = options.weight_decay_or_default();
  if (options.optimizer == "adadelta") {
    AdadeltaOptions adadelta;
    adadelta.lr = rate;
    adadelta.weight_decay = decay;
    return std::make_unique<Adadelta>(std::move(parameters), adadelta);
  }
  if (options.optimizer == "adam") {
    return std::make_unique<::torch::optim::Adam>(std::move(parameters), ::torch::optim::AdamOptions(rate).weight_decay(decay));
  }
  return std::make_unique<::torch::optim::SGD>(std::move(parameters),
                                               ::torch::optim::SGDOptions(rate).momentum(options.momentum).weight_decay(decay));
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
    TORCH_CHECK(found != tensors.end(), "the optimizer's state has no ", name, ": it is another optimizer's");
    return found->second.clone();
  };
  if (dynamic_cast<const ::torch::optim::SGD*>(&optimizer) != nullptr) {
    auto state = std::make_unique<::torch::optim::SGDParamState>();
    state->momentum_buffer(get("momentum_buffer"));
    return state;
  }
  if (dynamic_cast<const ::torch::optim::Adam*>(&optimizer) != nullptr) {
    auto state = std::make_unique<::torch::optim::AdamParamState>();
    state->step(get("step").item<std::int64_t>());
    state->exp_avg(get("exp_avg"));
    state->exp_avg_sq(get("exp_avg_sq"));
    return state;
  }
  auto state = std::make_unique<AdadeltaState>();
  state->square_avg = get("square_avg");
  state->acc_delta = get("acc_delta");
  return state;
}

}  // namespace

ddp::MakeOptimizer Optimizers::maker(const TrainOptions& options) {
  return [this, options](std::vector<at::Tensor> parameters) {
    auto made = make(options, std::move(parameters));
    made_.push_back(made.get());
    return made;
  };
}

void Optimizers::set_learning_rate(double rate) {
  for (::torch::optim::Optimizer* optimizer : made_) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
  }
}

Tensors Optimizers::state(const ::torch::nn::Module& model) const {
  Tensors all;
  for (const auto& named : model.named_parameters()) {
    for (const ::torch::optim::Optimizer* optimizer : made_) {
      const auto found = optimizer->state().find(named.value().unsafeGetTensorImpl());
      if (found == optimizer->state().end()) continue;
      for (const auto& [what, tensor] : to_tensors(*found->second)) all[named.key() + "/" + what] = tensor.detach().clone();
    }
  }
  return all;
}

void Optimizers::restore(const ::torch::nn::Module& model, const Tensors& state) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& named : model.named_parameters()) names[named.value().unsafeGetTensorImpl()] = named.key();
  for (::torch::optim::Optimizer* optimizer : made_) {
    optimizer->state().clear();
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const std::string prefix = names.at(parameter.unsafeGetTensorImpl()) + "/";
        Tensors own;
        for (auto at = state.lower_bound(prefix); at != state.end() && at->first.starts_with(prefix); ++at)
          own[at->first.substr(prefix.size())] = at->second;
        if (!own.empty()) optimizer->state()[parameter.unsafeGetTensorImpl()] = to_state(*optimizer, own);
      }
    }
  }
}

}  // namespace shoal::train
