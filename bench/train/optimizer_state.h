// The state of an optimizer for a parameter, as tensors.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

namespace shoal::train {

/// Tensors by name.
using Tensors = std::map<std::string, at::Tensor>;

/// Whether `tensor` can replace `like`: the same number of elements of the same type.
bool is_like(const at::Tensor& tensor, const at::Tensor& like);

/// The state of one of the optimizers that Optimizers makes: the tensors themselves, no copies.
Tensors to_tensors(const ::torch::optim::OptimizerParamState& state);

/// The state of `optimizer` with copies of `tensors`. Throws c10::Error if they belong to another kind of optimizer.
std::unique_ptr<::torch::optim::OptimizerParamState> to_state(const ::torch::optim::Optimizer& optimizer,
                                                              const Tensors& tensors);

}  // namespace shoal::train
