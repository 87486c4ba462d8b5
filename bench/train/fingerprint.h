// A number that tells whether parameters are equal.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace shoal::train {

/// Equal for tensors with the same bytes in the same order.
std::uint64_t fingerprint_of(const std::vector<at::Tensor>& tensors);

}  // namespace shoal::train
