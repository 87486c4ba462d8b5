// The batch normalisations of a module, whatever their dimensions.
#pragma once

#include <string>
#include <vector>

#include <torch/torch.h>

namespace shoal::parallel {

/// Refers to a BatchNorm1d, 2d or 3d, which must outlive it.
struct BatchNormLayer {
  std::string name;  ///< in the module that has it
  ::torch::nn::Module* module = nullptr;
  ::torch::nn::BatchNormOptions* options = nullptr;
  const at::Tensor* weight = nullptr;  ///< undefined without affine
  at::Tensor* running_mean = nullptr;  ///< what its forward uses; undefined without track_running_stats
  at::Tensor* running_var = nullptr;
  at::Tensor* num_batches_tracked = nullptr;
};

/// Each once. InstanceNorm and GroupNorm do not count.
std::vector<BatchNormLayer> batch_norm_layers(const ::torch::nn::Module& module);

}  // namespace shoal::parallel
