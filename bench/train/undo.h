// Optimizers that can undo their last step.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "bench/train/optimizer_state.h"

namespace shoal::train {

/// The part of an optimizer that keeps the values and state that its last step has changed. It needs as much memory again,
/// and a copy at each step, made while the values are in the processor's cache anyway.
class Undoable {
 public:
  explicit Undoable(::torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  virtual ~Undoable() = default;
  Undoable(const Undoable&) = delete;
  Undoable& operator=(const Undoable&) = delete;

  /// Steps made since restart() or the beginning, without those undone.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Restores the values and state before the last step. Throws c10::Error if there was no step, or if it has been undone
  /// already.
  void undo();
  /// Counts from 0 again; earlier steps can no longer be undone.
  void restart();

 protected:
  /// Must be called before a step.
  void keep();

 private:
  struct Kept {
    at::Tensor values;
    Tensors state;  // empty before the first step
  };

  ::torch::optim::Optimizer& optimizer_;
  std::vector<Kept> kept_;  // by parameter
  std::int64_t steps_ = 0;
  bool can_undo_ = false;
};

/// One of LibTorch's optimizers, or a similar one, with an undo().
template <typename Optimizer>
class WithUndo final : public Optimizer, public Undoable {
 public:
  template <typename Options>
  WithUndo(std::vector<at::Tensor> parameters, const Options& options)
      : Optimizer(std::move(parameters), options), Undoable(static_cast<::torch::optim::Optimizer&>(*this)) {}

  at::Tensor step(::torch::optim::Optimizer::LossClosure closure = nullptr) override {
    keep();
    return Optimizer::step(std::move(closure));
  }
};

}  // namespace shoal::train
