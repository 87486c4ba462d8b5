// The ranks that share layers in a pipeline.
#pragma once

#include <string>

#include <shoal/status.h>

#include "bench/train/job.h"
#include "src/pipeline/layout.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"

namespace shoal::train {

/// The ranks with the same stage and images as this one, which have other slices of its layers; null if layers stay whole.
/// `name` must be unique among the groups of this rank. Collective over these ranks. Errors: those of make_group_of().
Result<parallel::LayerSlices::Group> make_tensor_group(const Job& job, const pipeline::Layout& layout, const std::string& name);

/// How many layers are split over `ranks`, and which are whole and why.
std::string split_text(const parallel::TensorSplit& split, int ranks);

}  // namespace shoal::train
