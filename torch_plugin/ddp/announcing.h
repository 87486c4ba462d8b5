// How a model tells which of its parts it is about to run.
#pragma once

#include <functional>
#include <utility>

#include <torch/torch.h>

namespace shoal::ddp {

/// A base for models whose parts may wait for their parameters one by one (see Overlap::next_forward). LibTorch's C++ modules
/// have no hooks before forward, so the model says it itself. In every forward it announces each module that holds parameters
/// before it runs it; to announce a module announces all modules inside it.
/// Thread rule: one thread.
class Announcing {
 public:
  using Listener = std::function<void(const ::torch::nn::Module&)>;

  virtual ~Announcing() = default;

  /// From now on `listener` is told; an empty one: nobody.
  void announce_to(Listener listener) { listener_ = std::move(listener); }
  /// Told of every part twice: when forward comes to it, and when the listener has returned, so that it runs now.
  using Observer = std::function<void(const ::torch::nn::Module&, bool ready)>;
  /// From now on `observer` is told; an empty one: nobody.
  void observe(Observer observer) { observer_ = std::move(observer); }
  void announce(const ::torch::nn::Module& part) const {
    if (observer_) observer_(part, false);
    if (listener_) listener_(part);
    if (observer_) observer_(part, true);
  }
  /// Announces the module that `part` holds, then runs it.
  template <typename ModuleHolder>
  at::Tensor run(ModuleHolder& part, const at::Tensor& input) const {
    announce(*part);
    return part->forward(input);
  }

 private:
  Listener listener_;
  Observer observer_;
};

}  // namespace shoal::ddp
