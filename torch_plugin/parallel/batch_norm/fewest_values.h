// FewestValues: which unit of a chain normalizes by the fewest values, known before the first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/parallel/chain/chain.h"

namespace shoal::parallel {

/// A batch normalisation in training mode.
struct FewestValues {
  std::string unit;
  std::int64_t for_each_image = 0;  ///< values of each channel: the pixels of its map
};

/// The batch normalisation of `chain` with the fewest values of each channel, the first of equal ones; none without such a
/// layer. Runs the units once, as probe(), on `images`: at least two, because torch normalizes by two values or more. Errors:
/// those of probe().
Result<std::optional<FewestValues>> fewest_values(const Chain& chain, const at::Tensor& images);

}  // namespace shoal::parallel
