// A run of a chain's units that shows whether they keep their rules, and what they return.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/parallel/chain/chain.h"

namespace shoal::parallel {

/// What a unit returns for a microbatch.
struct UnitOutput {
  std::vector<std::int64_t> shape;
  at::ScalarType type = at::kFloat;
};

/// Runs the units forward once on `microbatch`, a tensor as in training on the device of the parameters, and returns what each
/// of them gives. Buffers, gradients and generators are what they were, as with StateGuard. Errors: invalid_argument that names
/// the unit: it throws (with its words), returns no tensor or several, or changes its input in place.
Result<std::vector<UnitOutput>> probe(const Chain& chain, const at::Tensor& microbatch);

/// The error of a unit that threw `error` while it did `what`: "forward".
Status unit_failed(const Part& unit, const std::string& what, const std::exception& error);

}  // namespace shoal::parallel
