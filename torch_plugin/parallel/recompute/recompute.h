// Activation checkpointing: a unit keeps its input only, and runs again in the backward.
#pragma once

#include <memory>

#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// unit->forward(input), of which autograd keeps `input` and nothing else. The backward runs the unit a second time, with
/// gradients, and goes on from there. Results, gradients, buffers and the state of the random generators are those of a plain
/// call, bit for bit, if the unit computes the same from the same input, generator state and parameters:
///
///  - The second run draws the same random numbers, and the generators (of the CPU and of the input's device) then continue as
///    if it had not been.
///  - Buffers, such as the statistics of batch normalisation, are updated by the first run only.
///  - The second run has the training flag and the autocast settings of the first.
///
/// Costs another forward. Saves memory where a unit's intermediate results outlive the call, as with several microbatches in
/// flight; for a single small unit the peak may even rise. It is a plain call where gradients are disabled, or neither the
/// input nor a parameter of the unit requires one.
///
/// A parameter must not belong to two units that are recomputed, because torch's gradient reducer would see it ready twice.
/// The backward throws c10::Error if `input` was changed in place meanwhile, and whatever the unit throws. Thread rule: one
/// thread; the backward may run in autograd's threads.
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
at::Tensor recompute(const std::shared_ptr<Unit>& unit, const at::Tensor& input);

}  // namespace shoal::parallel
