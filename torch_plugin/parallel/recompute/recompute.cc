#include "torch_plugin/parallel/recompute/recompute.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include "torch_plugin/parallel/random/generator_states.h"
#include "torch_plugin/parallel/random/unit_seeds.h"

namespace shoal::parallel {
namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

/// Puts the values of a module's buffers back. Not as a change that autograd counts: other backward passes may have saved them.
class BufferGuard {
 public:
  explicit BufferGuard(const ::torch::nn::Module& module) : buffers_(module.buffers()) {
    for (const at::Tensor& buffer : buffers_) values_.push_back(buffer.detach().clone());
  }
  ~BufferGuard() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].variable_data().copy_(values_[i]);
  }
  BufferGuard(const BufferGuard&) = delete;
  BufferGuard& operator=(const BufferGuard&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> values_;
};

class TrainingGuard {
 public:
  TrainingGuard(Unit& unit, bool training) : unit_(unit), before_(unit.is_training()) {
    if (before_ != training) unit_.train(training);
  }
  ~TrainingGuard() {
    if (unit_.is_training() != before_) unit_.train(before_);
  }
  TrainingGuard(const TrainingGuard&) = delete;
  TrainingGuard& operator=(const TrainingGuard&) = delete;

 private:
  Unit& unit_;
  const bool before_;
};

/// Autocast of one type of device.
struct Autocast {
  c10::DeviceType device;
  bool enabled;
  at::ScalarType type;

  static Autocast of(c10::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, type);
  }
};

class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& wanted) : before_(Autocast::of(wanted.device)) { wanted.set(); }
  ~AutocastGuard() { before_.set(); }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  Autocast before_;
};

/// What the second run needs beside the input.
struct FirstRun final : ::torch::CustomClassHolder {
  FirstRun(std::shared_ptr<Unit> its_unit, c10::Device device)
      : unit(std::move(its_unit)), generators(device), training(unit->is_training()), autocast(Autocast::of(device.type())) {}

  std::shared_ptr<Unit> unit;
  GeneratorStates generators;  // before the run
  std::optional<MicrobatchSeed> seed = UnitSeeds::current();
  bool training;
  Autocast autocast;
};

class Recompute : public ::torch::autograd::Function<Recompute> {
 public:
  /// `anchor` requires a gradient, so that the result does, whether or not the input does.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& /*anchor*/,
                            const std::shared_ptr<Unit>& unit) {
    context->save_for_backward({input});
    context->saved_data["run"] = c10::IValue::make_capsule(c10::make_intrusive<FirstRun>(unit, input.device()));
    return unit->forward(input);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto run = c10::static_intrusive_pointer_cast<FirstRun>(context->saved_data["run"].toCapsule());
    const at::Tensor saved = context->get_saved_variables()[0];
    const at::Tensor input = saved.detach().requires_grad_(saved.requires_grad());
    const BufferGuard buffers(*run->unit);
    at::Tensor output;
    {
      const GeneratorGuard generators(input.device());
      const TrainingGuard training(*run->unit, run->training);
      const AutocastGuard autocast(run->autocast);
      const at::AutoGradMode gradient_mode(true);
      run->generators.restore();
      std::optional<UnitSeeds> seeds;
      if (run->seed) seeds.emplace(*run->seed, input.device());
      output = run->unit->forward(input);
    }
    if (output.requires_grad()) ::torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};

bool requires_gradient(const Unit& unit, const at::Tensor& input) {
  if (input.requires_grad()) return true;
  const std::vector<at::Tensor> parameters = unit.parameters();
  return std::ranges::any_of(parameters, [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

}  // namespace

at::Tensor recompute(const std::shared_ptr<Unit>& unit, const at::Tensor& input) {
  if (!at::GradMode::is_enabled() || !requires_gradient(*unit, input)) return unit->forward(input);
  return Recompute::apply(input, at::zeros({1}).requires_grad_(), unit);
}

}  // namespace shoal::parallel
