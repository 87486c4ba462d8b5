// The factory of the user's optimizers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/torch.h>

namespace shoal::ddp {

/// Makes an optimizer for some parameters, or for slices of them (DataParallelOptions::update_slices). It must treat each
/// parameter by itself, as all optimizers of torch::optim except LBFGS do.
using MakeOptimizer = std::function<std::unique_ptr<::torch::optim::Optimizer>(std::vector<at::Tensor>)>;

}  // namespace shoal::ddp
