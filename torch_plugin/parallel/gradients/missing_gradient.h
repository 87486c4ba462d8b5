// The error message for a parameter that has no gradient after the backward.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace shoal::parallel {

/// The reason to refuse `parameter` after the backward of all microbatches: it requires a gradient and has none. Empty where it
/// is fine. DistributedDataParallel has the same rule, because replicas wait for each gradient.
inline std::string refusal_without_gradient(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.requires_grad() || parameter.grad().defined()) return "";
  return "its parameter " + name + " gets no gradient; remove it, or freeze it by requires_grad(false)";
}

}  // namespace shoal::parallel
