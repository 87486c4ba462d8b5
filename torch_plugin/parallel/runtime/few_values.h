// FewValues: a batch normalisation whose statistics are of few values; and what to do.
#pragma once

#include <cstdint>
#include <string>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/parallel/batch_norm/fewest_values.h"
#include "torch_plugin/parallel/runtime/microbatches.h"

namespace shoal::parallel {

/// Below this many values of each channel, mean and variance say little.
inline constexpr std::int64_t kEnoughValues = 8;

/// A batch normalisation in the smallest microbatch of a step.
struct FewValues {
  int stage = 0;
  std::string layer;        ///< its name in the model
  std::int64_t values = 0;  ///< of each channel; fewer than kEnoughValues
};

/// The warning about the first of `count` such layers: layer, values, microbatch, and how many microbatches give enough.
std::string warning_of(const FewValues& first, std::size_t count, const Microbatches& microbatches);

/// Error: invalid_argument if a training step in `microbatches` would give the layer of `fewest` one value of each channel. It
/// names the unit, the microbatch's size and how many microbatches are possible.
Status check_values(const FewestValues& fewest, const Microbatches& microbatches);

/// The same for a step that nobody has checked before it began: throws c10::ValueError if `error`, of a unit, is that of a
/// batch normalisation that has one value of each channel in training; also with torch's words.
void rethrow_single_value(const c10::Error& error, const Microbatches& microbatches, int microbatch);

}  // namespace shoal::parallel
