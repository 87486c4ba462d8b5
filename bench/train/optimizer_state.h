// What an optimizer remembers of a parameter, as tensors.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <torch/torch.h>

namespace shoal::train {

/// Tensors by name.
using Tensors = std::map<std::string, at::Tensor>;

/// Whether `tensor` can stand in the place of `like`: as many elements of the same type.
bool is_like(const at::Tensor& tensor, const at::Tensor& like);

/// Of one of the optimizers that Optimizers makes: the tensors themselves, no copies.
Tensors to_tensors(const ::torch::optim::OptimizerParamState& state);

/// Makes `optimizer` remember copies of `tensors`. Throws c10::Error where they are another optimizer's.
std::unique_ptr<::torch::optim::OptimizerParamState> to_state(const ::torch::optim::Optimizer& optimizer,
                                                              const Tensors& tensors);

}  // namespace shoal::train
