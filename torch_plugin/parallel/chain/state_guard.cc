#include "torch_plugin/parallel/chain/state_guard.h"

namespace shoal::parallel {

StateGuard::StateGuard(const Chain& chain, at::Device device) : generators_(device) {
  const at::NoGradGuard no_grad;
  for (const Part& unit : chain.units()) {
    for (const auto& [name, buffer] : unit.buffers()) buffers_.emplace_back(buffer, buffer.detach().clone());
    for (const auto& [name, parameter] : unit.parameters()) {
      gradients_.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
}

StateGuard::~StateGuard() {
  const at::NoGradGuard no_grad;
  // Through variable_data(), so that a graph of the caller that saved a buffer does not take this for a change.
  for (const auto& [buffer, values] : buffers_) buffer.variable_data().copy_(values);
  // From the last one: a parameter that its unit has twice had its gradient at its first place.
  for (auto each = gradients_.rbegin(); each != gradients_.rend(); ++each) each->first.mutable_grad() = each->second;
}

}  // namespace shoal::parallel
