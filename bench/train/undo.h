// Optimizers that can take their last step back.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

#include "bench/train/optimizer_state.h"

namespace shoal::train {

/// The part of an optimizer that keeps what its last step has changed: the values, and what it remembers of them. That takes as
/// much memory once more, and a copy at each step, while the processor has the values in its cache anyhow.
class Undoable {
 public:
  explicit Undoable(::torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  virtual ~Undoable() = default;
  Undoable(const Undoable&) = delete;
  Undoable& operator=(const Undoable&) = delete;

  /// Steps made since restart() or the beginning, but for what has been undone.
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  /// Makes everything as it was before the last step. Throws c10::Error where there was none, and the second time.
  void undo();
  /// Counts from 0 again; what has been until now cannot be undone.
  void restart();

 protected:
  /// Before a step.
  void keep();

 private:
  struct Kept {
    at::Tensor values;
    Tensors state;  // nothing before the first step
  };

  ::torch::optim::Optimizer& optimizer_;
  std::vector<Kept> kept_;  // by parameter
  std::int64_t steps_ = 0;
  bool can_undo_ = false;
};

/// One of LibTorch's optimizers, or one like them, with an undo().
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
