#include "bench/train/optimizers.h"

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/train/adadelta.h"

namespace shoal::train {
namespace {

constexpr const char* kStep = "step";  // all other state has one number for each element

template <typename Optimizer, typename Options>
std::unique_ptr<::torch::optim::Optimizer> make(std::vector<at::Tensor> parameters, const Options& options, bool with_undo) {
  if (with_undo) return std::make_unique<WithUndo<Optimizer>>(std::move(parameters), options);
  return std::make_unique<Optimizer>(std::move(parameters), options);
}

std::unique_ptr<::torch::optim::Optimizer> make(const TrainOptions& options, std::vector<at::Tensor> parameters) {
  const double rate = options.start_learning_rate();
  const double decay = options.weight_decay_or_default();
  if (options.optimizer == "adadelta") {
    AdadeltaOptions adadelta;
    adadelta.lr = rate;
    adadelta.weight_decay = decay;
    return make<Adadelta>(std::move(parameters), adadelta, options.survives());
  }
  if (options.optimizer == "adam") {
    return make<::torch::optim::Adam>(std::move(parameters), ::torch::optim::AdamOptions(rate).weight_decay(decay),
                                      options.survives());
  }
  return make<::torch::optim::SGD>(std::move(parameters),
                                   ::torch::optim::SGDOptions(rate).momentum(options.momentum).weight_decay(decay),
                                   options.survives());
}

/// Elements of a parameter that are contiguous in memory, with the optimizer's state for them.
struct Remembered {
  std::int64_t begin;
  Tensors tensors;
};

std::int64_t elements_between(const at::Tensor& parameter, const at::Tensor& slice) {
  const auto bytes = static_cast<const char*>(slice.const_data_ptr()) - static_cast<const char*>(parameter.const_data_ptr());
  return bytes / parameter.element_size();
}

/// `values`, one for each element of `parameter`, in the order of its memory.
at::Tensor as_memory(const at::Tensor& values, const at::Tensor& parameter) {
  return at::empty_like(parameter).copy_(values).as_strided({parameter.numel()}, {1});
}

/// Joins the states of a parameter's slices to the state of the whole parameter.
Tensors joined(std::vector<Remembered> slices, const at::Tensor& parameter) {
  if (slices.size() == 1) return std::move(slices.front().tensors);
  std::ranges::sort(slices, {}, &Remembered::begin);
  Tensors all;
  for (const auto& [what, first] : slices.front().tensors) {
    if (first.dim() == 0) {
      all[what] = first;
      continue;
    }
    std::vector<at::Tensor> parts;
    for (const Remembered& slice : slices) parts.push_back(slice.tensors.at(what));
    all[what] = at::cat(parts).as_strided(parameter.sizes(), parameter.strides());
  }
  return all;
}

/// The part of the state of the whole parameter that belongs to `slice`.
Tensors slice_of(const Tensors& state, const at::Tensor& parameter, const at::Tensor& slice) {
  if (slice.numel() == parameter.numel()) return state;
  Tensors own;
  for (const auto& [what, values] : state) {
    own[what] =
        values.dim() == 0 ? values : as_memory(values, parameter).narrow(0, elements_between(parameter, slice), slice.numel());
  }
  return own;
}

/// Optimizers without elements make no updates.
bool has_elements(const ::torch::optim::Optimizer& optimizer) {
  return std::ranges::any_of(optimizer.param_groups(), [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const at::Tensor& parameter) { return parameter.numel() > 0; });
  });
}

/// Every parameter has its own storage, which its slices share.
const void* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

ddp::MakeOptimizer Optimizers::maker(const TrainOptions& options) {
  return [this, options](std::vector<at::Tensor> parameters) {
    auto made = make(options, std::move(parameters));
    made_.push_back(made.get());
    if (auto* undoable = dynamic_cast<Undoable*>(made.get()); undoable != nullptr && has_elements(*made))
      undoable_.push_back(undoable);
    return made;
  };
}

std::int64_t Optimizers::complete_steps() const {
  return undoable_.empty() ? 0 : std::ranges::min(undoable_, {}, &Undoable::steps)->steps();
}

void Optimizers::go_back_to(std::int64_t steps) {
  for (Undoable* undoable : undoable_) {
    if (undoable->steps() > steps) undoable->undo();
    TORCH_CHECK(undoable->steps() == steps, "a parameter has had ", undoable->steps(), " updates and cannot be reset to ",
                steps);
  }
}

void Optimizers::set_learning_rate(double rate) {
  for (::torch::optim::Optimizer* optimizer : made_) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
  }
}

Tensors Optimizers::state(const ::torch::nn::Module& model) const {
  std::unordered_map<const void*, std::vector<Remembered>> slices;  // by storage
  std::unordered_map<const void*, at::Tensor> parameters;
  for (const auto& named : model.named_parameters()) parameters[storage_of(named.value())] = named.value();
  for (const ::torch::optim::Optimizer* optimizer : made_) {
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& slice : group.params()) {
        const auto found = optimizer->state().find(slice.unsafeGetTensorImpl());
        if (found == optimizer->state().end()) continue;
        const at::Tensor& parameter = parameters.at(storage_of(slice));
        slices[storage_of(slice)].push_back({elements_between(parameter, slice), to_tensors(*found->second)});
      }
    }
  }
  Tensors all;
  for (const auto& named : model.named_parameters()) {
    const auto found = slices.find(storage_of(named.value()));
    if (found == slices.end()) continue;
    for (const auto& [what, tensor] : joined(std::move(found->second), named.value()))
      all[named.key() + "/" + what] = tensor.detach().clone();
  }
  return all;
}

void Optimizers::restore(const ::torch::nn::Module& model, const Tensors& state) {
  std::unordered_map<const void*, std::pair<std::string, at::Tensor>> parameters;  // by storage
  for (const auto& named : model.named_parameters()) parameters[storage_of(named.value())] = {named.key(), named.value()};
  for (::torch::optim::Optimizer* optimizer : made_) {
    optimizer->state().clear();
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& slice : group.params()) {
        const auto& [name, parameter] = parameters.at(storage_of(slice));
        const std::string prefix = name + "/";
        Tensors own;
        for (auto at = state.lower_bound(prefix); at != state.end() && at->first.starts_with(prefix); ++at)
          own[at->first.substr(prefix.size())] = at->second;
        if (own.empty()) continue;
        for (const auto& [what, values] : own) {
          TORCH_CHECK(what == kStep || is_like(values, parameter), "the optimizer's ", what, " of ", name,
                      " is not of its shape and type: it belongs to another network");
        }
        optimizer->state()[slice.unsafeGetTensorImpl()] = to_state(*optimizer, slice_of(own, parameter, slice));
      }
    }
  }
  for (Undoable* undoable : undoable_) undoable->restart();
}

}  // namespace shoal::train
