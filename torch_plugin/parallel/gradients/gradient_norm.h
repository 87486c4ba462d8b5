// The norm of the gradient of a model whose parameters are spread over ranks.
#pragma once

#include <vector>

#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/parallel/tensor/layer_slices.h"

namespace shoal::parallel {

/// The ranks that together have all parameters of one replica once. A null group is this rank alone.
struct NormGroups {
  c10::intrusive_ptr<c10d::ProcessGroup> tensor;    ///< ranks with other slices of the same layers
  c10::intrusive_ptr<c10d::ProcessGroup> pipeline;  ///< ranks with other stages and the same slice
};

/// The 2-norm of the gradient of the whole model. `stage` has this rank's parameters, of which `split` names those that are
/// slices: the others are the same on all ranks of groups.tensor and count once. Parameters without a gradient count as zero.
/// It is not finite on every rank if a gradient is not finite on any. Summed in float64; the same bits on all ranks.
/// Collective over both groups. Throws the exceptions of their backends.
double gradient_norm(const ::torch::nn::Module& stage, const std::vector<SplitTensor>& split, const NormGroups& groups);

/// Scales the gradients of `stage` such that the norm of the whole model's gradient is at most `max_norm`; returns the norm
/// that it was. Where that is not finite no gradient is changed, on any rank, so that all ranks can skip the step alike.
/// Collective, as above. Throws c10::ValueError for a max_norm that is not a positive number.
double clip_gradient_norm(const ::torch::nn::Module& stage, const std::vector<SplitTensor>& split, const NormGroups& groups,
                          double max_norm);

}  // namespace shoal::parallel
