#include "torch_plugin/parallel/profiler/profiler.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include "torch_plugin/parallel/chain/probe.h"
#include "torch_plugin/parallel/chain/state_guard.h"
#include "torch_plugin/parallel/gradients/missing_gradient.h"
#include "torch_plugin/parallel/profiler/allocation_meter.h"

namespace shoal::parallel {
namespace {

using ProfileClock = std::chrono::steady_clock;

void wait_for(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// The time of `work` in microseconds, until `device` has done all of it.
template <typename Work>
double time_us(at::Device device, const Work& work) {
  const ProfileClock::time_point start = ProfileClock::now();
  work();
  wait_for(device);
  return std::chrono::duration<double, std::micro>(ProfileClock::now() - start).count();
}

double median_us(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::int64_t bytes_of(const std::vector<NamedTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

/// Runs of the chain's units, with what they take.
class MeasuredRuns {
 public:
  MeasuredRuns(const Chain& chain, const at::Tensor& microbatch)
      : units_(chain.units()),
        microbatch_(microbatch.detach()),
        forward_us_(units_.size()),
        backward_us_(units_.size()),
        stash_bytes_(units_.size()),
        workspace_bytes_(units_.size()),
        output_bytes_(units_.size()),
        output_shapes_(units_.size()) {}

  /// Forward and backward of every unit, once.
  Status run_timed() {
    if (Status status = forward([&](std::size_t i, const auto& work) { forward_us_[i].push_back(time_us(device(), work)); });
        !status.ok()) {
      return status;
    }
    return backward([&](std::size_t i, const auto& work) { backward_us_[i].push_back(time_us(device(), work)); });
  }
  void forget_times() {
    for (auto* times : {&forward_us_, &backward_us_}) {
      for (std::vector<double>& each : *times) each.clear();
    }
  }
  /// Forward and backward of every unit, once; after run_timed(), which leaves gradients of the parameters.
  Status run_metered() {
    inputs_.clear();  // before the meter begins, which does not know these blocks
    AllocationMeter meter(device().type());
    Status status = forward([&](std::size_t i, const auto& work) {
      const std::int64_t before = meter.bytes();
      meter.restart_peak();
      work();
      stash_bytes_[i] = std::max<std::int64_t>(0, meter.bytes() - before);
      workspace_bytes_[i] = meter.peak() - before - stash_bytes_[i];
      output_bytes_[i] = static_cast<std::int64_t>(outputs_[i].nbytes());
      output_shapes_[i] = outputs_[i].sizes().vec();
    });
    if (!status.ok()) return status;
    return backward([&](std::size_t i, const auto& work) {
      const std::int64_t before = meter.bytes() - output_bytes_[i];  // without the gradient of the output
      meter.restart_peak();
      work();
      workspace_bytes_[i] = std::max(workspace_bytes_[i], meter.peak() - before);
    });
  }

  /// The unit's costs; after run_metered().
  [[nodiscard]] pipeline::Unit costs(std::size_t i) const {
    return {.name = units_[i].name,
            .forward_us = median_us(forward_us_[i]),
            .backward_us = median_us(backward_us_[i]),
            .parameter_bytes = bytes_of(units_[i].parameters()),
            .buffer_bytes = bytes_of(units_[i].buffers()),
            .stash_bytes = stash_bytes_[i],
            .output_bytes = output_bytes_[i],
            .output_shape = output_shapes_[i],
            .workspace_bytes = workspace_bytes_[i]};
  }

 private:
  [[nodiscard]] at::Device device() const { return microbatch_.device(); }

  /// Calls `measure(unit, work)` for each unit, which calls work().
  template <typename Measure>
  Status forward(const Measure& measure) {
    inputs_.assign(units_.size(), {});
    outputs_.assign(units_.size(), {});
    for (std::size_t i = 0; i < units_.size(); ++i) {
      inputs_[i] = i == 0 ? microbatch_ : outputs_[i - 1].detach().requires_grad_();
      try {
        measure(i, [&] { outputs_[i] = units_[i].forward(inputs_[i]); });
      } catch (const std::exception& error) {
        return unit_failed(units_[i], "forward", error);
      }
    }
    return {};
  }

  /// As forward(). Leaves no outputs.
  template <typename Measure>
  Status backward(const Measure& measure) {
    at::Tensor gradient = at::full_like(outputs_.back(), 1.0 / static_cast<double>(outputs_.back().numel()));
    for (std::size_t i = units_.size(); i-- > 0;) {
      try {
        measure(i, [&] {
          if (outputs_[i].requires_grad()) ::torch::autograd::backward({outputs_[i]}, {gradient});
        });
      } catch (const std::exception& error) {
        return unit_failed(units_[i], "backward", error);
      }
      if (i > 0) gradient = inputs_[i].grad();
      if (i > 0 && !gradient.defined()) {
        return {StatusCode::invalid_argument,
                "unit '" + units_[i].name + "', backward: its input gets no gradient, so the units before it cannot learn"};
      }
      for (const auto& [name, parameter] : units_[i].parameters()) {
        const std::string refusal = refusal_without_gradient(name, parameter);
        if (refusal.empty()) continue;
        return {StatusCode::invalid_argument, "unit '" + units_[i].name + "', backward: " + refusal};
      }
      outputs_[i].reset();  // with all that its backward needed
    }
    return {};
  }

  const std::vector<Part>& units_;
  const at::Tensor microbatch_;
  std::vector<at::Tensor> inputs_;  // but for the first one, leaves that take gradients
  std::vector<at::Tensor> outputs_;
  std::vector<std::vector<double>> forward_us_;  // of each unit, of each run
  std::vector<std::vector<double>> backward_us_;
  std::vector<std::int64_t> stash_bytes_;
  std::vector<std::int64_t> workspace_bytes_;
  std::vector<std::int64_t> output_bytes_;
  std::vector<std::vector<std::int64_t>> output_shapes_;
};

Status check_request(const at::Tensor& microbatch, const ProfileOptions& options) {
  if (options.warm_ups < 0 || options.runs < 1) {
    return {StatusCode::invalid_argument, "profile: " + std::to_string(options.warm_ups) + " warm-ups and " +
                                              std::to_string(options.runs) + " runs; at least 0 and 1 are necessary"};
  }
  if (microbatch.defined() && microbatch.dim() > 0 && microbatch.numel() > 0) return {};
  return {StatusCode::invalid_argument, "profile: the microbatch has no images"};
}

}  // namespace

Result<pipeline::Profile> profile(const Chain& chain, const at::Tensor& microbatch, const ProfileOptions& options) {
  if (Status status = check_request(microbatch, options); !status.ok()) return status;
  if (const auto probed = probe(chain, microbatch); !probed.ok()) return probed.status();
  const at::AutoGradMode with_gradients(true);
  const StateGuard guard(chain, microbatch.device());
  MeasuredRuns runs(chain, microbatch);
  for (int run = 0; run < options.warm_ups + options.runs; ++run) {
    if (run == options.warm_ups) runs.forget_times();
    if (Status status = runs.run_timed(); !status.ok()) return status;
  }
  if (Status status = runs.run_metered(); !status.ok()) return status;

  pipeline::Profile measured;
  measured.dtype = c10::getDtypeNames(chain.units().front().parameters().front().second.scalar_type()).first;
  measured.device = c10::DeviceTypeName(microbatch.device().type(), /*lower_case=*/true);
  measured.torch = TORCH_VERSION;
  measured.threads = at::get_num_threads();
  measured.microbatch = microbatch.size(0);
  measured.channels = microbatch.dim() > 1 ? microbatch.size(1) : 0;
  for (std::size_t i = 0; i < chain.units().size(); ++i) measured.units.push_back(runs.costs(i));
  return measured;
}

}  // namespace shoal::parallel
