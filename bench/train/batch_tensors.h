// Batches of images as tensors.
#pragma once

#include <cstddef>
#include <utility>

#include <torch/torch.h>

#include "bench/train/data/loader.h"

namespace shoal::train {

/// Test images that go through a network at a time.
inline constexpr std::size_t kEvaluationBatch = 64;

/// The pixels (N, channels, height, width) and labels (N) of `batch`, without copying them, except to a GPU.
std::pair<at::Tensor, at::Tensor> to_tensors(data::Batch batch, const data::Dataset& dataset, at::Device device);

}  // namespace shoal::train
