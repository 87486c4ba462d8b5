// How a model announces which of its parts it is about to run.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <torch/torch.h>

namespace shoal::ddp {

/// A base for models whose parts may wait for their parameters one by one (see Overlap::next_forward). LibTorch's C++ modules
/// have no hooks before forward, so the model itself announces its parts. In every forward it must announce each module that
/// holds parameters before it runs that module. Announcing a module announces all modules inside it. A copy announces to the
/// same listener and observer: a part of a model that keeps one does not need the model to live. Thread rule: one thread.
class Announcing {
 public:
  using Listener = std::function<void(const ::torch::nn::Module&)>;

  virtual ~Announcing() = default;

  /// From now on every announcement calls `listener`; an empty function removes it.
  void announce_to(Listener listener) { listeners_->listener = std::move(listener); }
  /// Called twice for every part: when forward reaches the part, and when the listener has returned and the part starts.
  using Observer = std::function<void(const ::torch::nn::Module&, bool ready)>;
  /// From now on every announcement calls `observer`; an empty function removes it.
  void observe(Observer observer) { listeners_->observer = std::move(observer); }
  void announce(const ::torch::nn::Module& part) const {
    if (listeners_->observer) listeners_->observer(part, false);
    if (listeners_->listener) listeners_->listener(part);
    if (listeners_->observer) listeners_->observer(part, true);
  }
  /// Announces the module that `part` holds, then runs it.
  template <typename ModuleHolder>
  at::Tensor run(ModuleHolder& part, const at::Tensor& input) const {
    announce(*part);
    return part->forward(input);
  }

 private:
  struct Listeners {
    Listener listener;
    Observer observer;
  };
  std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();
};

}  // namespace shoal::ddp
