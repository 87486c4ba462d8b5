// How a model announces which of its parts it is about to run, and lets others run them.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include <torch/torch.h>

namespace shoal::ddp {

/// A base for models whose parts may wait for their parameters one by one (see Overlap::next_forward). LibTorch's C++ modules
/// have no hooks before forward, so the model itself announces its parts. In every forward it must announce each module that
/// holds parameters before it runs that module. Announcing a module announces all modules inside it. A copy has the same
/// listener, observer and runners: a part of a model that keeps one does not need the model to live. Thread rule: one thread.
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
  /// Runs the part that is passed, in place of its forward.
  using Runner = std::function<at::Tensor(::torch::nn::Module& part, const at::Tensor& input)>;
  /// From now on run() calls `runner` for `part`; an empty function removes it. A runner must not keep `part` alive: the models
  /// that share this object may live longer.
  void run_by(const std::shared_ptr<::torch::nn::Module>& part, Runner runner) {
    if (runner) {
      listeners_->runners[part.get()] = {part, std::move(runner)};
    } else {
      listeners_->runners.erase(part.get());
    }
  }
  /// Announces the module that `part` holds, then runs it.
  template <typename ModuleHolder>
  at::Tensor run(ModuleHolder& part, const at::Tensor& input) const {
    announce(*part);
    if (const Runner* runner = runner_of(*part)) return (*runner)(*part, input);
    return part->forward(input);
  }

 private:
  struct PartRunner {
    std::weak_ptr<::torch::nn::Module> part;  // expired: another module may have the address
    Runner runner;
  };
  struct Listeners {
    Listener listener;
    Observer observer;
    std::unordered_map<const ::torch::nn::Module*, PartRunner> runners;
  };

  [[nodiscard]] const Runner* runner_of(const ::torch::nn::Module& part) const {
    if (listeners_->runners.empty()) return nullptr;
    const auto found = listeners_->runners.find(&part);
    if (found == listeners_->runners.end() || found->second.part.expired()) return nullptr;
    return &found->second.runner;
  }

  std::shared_ptr<Listeners> listeners_ = std::make_shared<Listeners>();
};

}  // namespace shoal::ddp
