#include "torch_plugin/parallel/batch_norm/batch_norm_observer.h"

#include <memory>
#include <string_view>
#include <utility>

#include <ATen/record_function.h>

namespace shoal::parallel {
namespace {

// Callbacks of torch are plain functions.
thread_local const BatchNormObserver::Observe* current_observe = nullptr;

/// Inputs are readable at the start of a call only.
struct StartedCall final : at::ObserverContext {
  BatchNormCall call;
};

at::Tensor optional_tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  constexpr std::size_t kTraining = 5;  // input, weight, bias, running_mean, running_var, training, ...
  if (std::string_view(function.name()) != "aten::batch_norm") return nullptr;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  if (!inputs[kTraining].toBool()) return nullptr;
  auto started = std::make_unique<StartedCall>();
  started->call = {inputs[0].toTensor(), optional_tensor(inputs[1]), optional_tensor(inputs[3]), optional_tensor(inputs[4])};
  return started;
}

void on_end(const at::RecordFunction& /*function*/, at::ObserverContext* context) {
  if (context == nullptr) return;
  const at::DisableRecordFunctionGuard no_recursion;
  (*current_observe)(static_cast<StartedCall*>(context)->call);
}

}  // namespace

BatchNormObserver::BatchNormObserver(Observe observe) : observe_(std::move(observe)) {
  current_observe = &observe_;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_start, on_end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

BatchNormObserver::~BatchNormObserver() {
  at::removeCallback(handle_);
  current_observe = nullptr;
}

}  // namespace shoal::parallel
