#include "bench/train/undo.h"

#include <utility>

namespace shoal::train {

void Undoable::keep() {
  const at::NoGradGuard no_grad;
  const auto copy = [](at::Tensor& into, const at::Tensor& from) {
    if (!into.defined()) into = at::empty_like(from);
    into.copy_(from);
  };
  std::size_t at = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (at == kept_.size()) kept_.emplace_back();
      Kept& kept = kept_[at++];
      copy(kept.values, parameter.detach());
      const auto state = optimizer_.state().find(parameter.unsafeGetTensorImpl());
      if (state == optimizer_.state().end()) {
        kept.state.clear();
        continue;
      }
      for (const auto& [what, tensor] : to_tensors(*state->second)) copy(kept.state[what], tensor);
    }
  }
  ++steps_;
  can_undo_ = true;
}

void Undoable::undo() {
  TORCH_CHECK(std::exchange(can_undo_, false), "the optimizer has no step to undo");
  const at::NoGradGuard no_grad;
  std::size_t at = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const Kept& kept = kept_[at++];
      parameter.detach().copy_(kept.values);
      if (kept.state.empty()) {
        optimizer_.state().erase(parameter.unsafeGetTensorImpl());
      } else {
        optimizer_.state()[parameter.unsafeGetTensorImpl()] = to_state(optimizer_, kept.state);
      }
    }
  }
  --steps_;
}

void Undoable::restart() {
  steps_ = 0;
  can_undo_ = false;
}

}  // namespace shoal::train
