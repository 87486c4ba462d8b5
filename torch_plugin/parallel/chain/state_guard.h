// StateGuard: a chain may run for a measurement and is afterwards what it was before.
#pragma once

#include <utility>
#include <vector>

#include <torch/torch.h>

#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/random/generator_states.h"

namespace shoal::parallel {

/// While it exists, the chain's units may run forward and backward. Its destructor puts back the values of all buffers, the
/// gradients of all parameters, and the states of the random generators of the CPU and of `device`. The parameters have no
/// gradients at first. Thread rule: one thread, and nothing else runs these units meanwhile.
class StateGuard {
 public:
  StateGuard(const Chain& chain, at::Device device);
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;
  ~StateGuard();

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;    // each with a copy of its values
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // each parameter with its gradient
  const GeneratorGuard generators_;
};

}  // namespace shoal::parallel
