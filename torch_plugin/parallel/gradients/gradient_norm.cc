#include "torch_plugin/parallel/gradients/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include <torch/torch.h>

#include <c10/util/Exception.h>

namespace shoal::parallel {
namespace {

double sum_over(const c10::intrusive_ptr<c10d::ProcessGroup>& group, double value, c10::Device device) {
  if (!group) return value;
  std::vector<at::Tensor> tensors{at::full({1}, value, at::TensorOptions(at::kDouble).device(device))};
  group->allreduce(tensors)->wait();
  return tensors[0].item<double>();
}

}  // namespace

double gradient_norm(const ::torch::nn::Module& stage, const std::vector<SplitTensor>& split, const NormGroups& groups) {
  const at::NoGradGuard no_grad;
  double of_slices = 0;
  double of_whole = 0;
  c10::Device device(c10::kCPU);  // where the groups communicate
  for (const auto& parameter : stage.named_parameters()) {
    device = parameter.value().device();
    const at::Tensor& gradient = parameter.value().grad();
    if (!gradient.defined()) continue;
    const bool is_slice = std::ranges::any_of(split, [&](const SplitTensor& each) { return each.name == parameter.key(); });
    const double norm = at::linalg_vector_norm(gradient, 2, std::nullopt, false, at::kDouble).item<double>();
    (is_slice ? of_slices : of_whole) += norm * norm;
  }
  const double of_stage = sum_over(groups.tensor, of_slices, device) + of_whole;
  return std::sqrt(sum_over(groups.pipeline, of_stage, device));
}

double clip_gradient_norm(const ::torch::nn::Module& stage, const std::vector<SplitTensor>& split, const NormGroups& groups,
                          double max_norm) {
  TORCH_CHECK_VALUE(max_norm > 0 && std::isfinite(max_norm), "max_norm is ", max_norm, ", not a positive number");
  const double norm = gradient_norm(stage, split, groups);
  if (!std::isfinite(norm) || norm <= max_norm) return norm;
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : stage.parameters()) {
    if (parameter.grad().defined()) parameter.grad().mul_(max_norm / norm);
  }
  return norm;
}

}  // namespace shoal::parallel
