#include "torch_plugin/parallel/chain/probe.h"

#include <exception>
#include <string>

#include "torch_plugin/parallel/chain/state_guard.h"

namespace shoal::parallel {

Status unit_failed(const Part& unit, const std::string& what, const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string words = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
  return {StatusCode::invalid_argument, "unit '" + unit.name + "', " + what + ": " + words};
}

Result<std::vector<UnitOutput>> probe(const Chain& chain, const at::Tensor& microbatch) {
  const c10::InferenceMode counts_versions(false);
  const at::NoGradGuard no_grad;
  const StateGuard guard(chain, microbatch.device());
  std::vector<UnitOutput> outputs;
  at::Tensor x = microbatch.clone();  // a unit that changes its input must not change the caller's
  for (const Part& unit : chain.units()) {
    const auto version = x._version();
    at::Tensor y;
    try {
      y = unit.forward(x);
    } catch (const std::exception& error) {
      return unit_failed(unit, "forward", error);
    }
    if (x._version() != version) {
      return Status(
          StatusCode::invalid_argument,
          "unit '" + unit.name +
              "' changes its input in place, but its input may come from another rank; begin the unit with an operation "
              "that makes a new tensor (relu instead of relu_), or make one unit of it and the unit before it");
    }
    if (!y.defined()) return Status(StatusCode::invalid_argument, "unit '" + unit.name + "' returns no tensor");
    outputs.push_back({y.sizes().vec(), y.scalar_type()});
    x = std::move(y);
  }
  return outputs;
}

}  // namespace shoal::parallel
