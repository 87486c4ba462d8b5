// What is said of a parameter that a backward has left without a gradient.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace shoal::parallel {

/// Why no model may have `parameter` after the backward of all microbatches, or "". DistributedDataParallel has the same rule:
/// replicas wait for each gradient.
inline std::string refusal_without_gradient(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.requires_grad() || parameter.grad().defined()) return "";
  return "its parameter " + name + " gets no gradient; remove it, or freeze it by requires_grad(false)";
}

}  // namespace shoal::parallel
