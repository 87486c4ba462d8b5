#include "torch_plugin/parallel/batch_norm/deferred_statistics.h"

#include <utility>

namespace shoal::parallel {
namespace {

/// (1 - factor) * running + factor * found, in double. Not as a change that autograd counts: graphs may have saved the buffer.
void update(const at::Tensor& running, const at::Tensor& found, double factor) {
  const at::NoGradGuard no_grad;
  running.variable_data().copy_(running.to(at::kDouble) * (1 - factor) + found * factor);
}

/// Of the values that a call has normalized, from what it has written. The mean in single precision is corrected: its rounding
/// would count where means are much larger than deviations.
ChannelMoments moments_of(const BatchNormCall& call) {
  std::vector<std::int64_t> per_channel(static_cast<std::size_t>(call.input.dim()), 1);
  per_channel[1] = call.input.size(1);
  std::vector<std::int64_t> others;
  for (std::int64_t dimension = 0; dimension < call.input.dim(); ++dimension) {
    if (dimension != 1) others.push_back(dimension);
  }
  const at::Tensor rest = (call.input - call.running_mean.view(per_channel)).mean(others);
  return {call.values(), call.running_mean.to(at::kDouble) + rest,
          call.running_var.to(at::kDouble) * static_cast<double>(call.values() - 1)};
}

}  // namespace

DeferredStatistics::DeferredStatistics(const std::vector<std::shared_ptr<Unit>>& chunks) {
  const at::NoGradGuard no_grad;
  for (const std::shared_ptr<Unit>& chunk : chunks) {
    for (BatchNormLayer& layer : batch_norm_layers(*chunk)) {
      if (!layer.module->is_training() || !layer.running_mean->defined()) continue;
      Deferred deferred{layer, *layer.running_mean, *layer.running_var, *layer.num_batches_tracked, layer.options->momentum(),
                        {}};
      // With a momentum of 1 a call replaces them by its mean and its unbiased variance.
      *layer.running_mean = at::zeros_like(*layer.running_mean);
      *layer.running_var = at::zeros_like(*layer.running_var);
      *layer.num_batches_tracked = at::Tensor();
      layer.options->momentum(1.0);
      layers_.emplace(layer.running_mean->unsafeGetTensorImpl(), std::move(deferred));
    }
  }
}

DeferredStatistics::~DeferredStatistics() {
  for (auto& [written, deferred] : layers_) {
    *deferred.layer.running_mean = deferred.running_mean;
    *deferred.layer.running_var = deferred.running_var;
    *deferred.layer.num_batches_tracked = deferred.num_batches_tracked;
    deferred.layer.options->momentum(deferred.momentum);
  }
}

void DeferredStatistics::add(const BatchNormCall& call) {
  if (!call.running_mean.defined()) return;
  const auto found = layers_.find(call.running_mean.unsafeGetTensorImpl());
  if (found == layers_.end()) return;
  const at::NoGradGuard no_grad;
  found->second.moments.add(moments_of(call));
}

void DeferredStatistics::commit() {
  const at::NoGradGuard no_grad;
  for (auto& [written, deferred] : layers_) {
    if (deferred.moments.count < 2) continue;  // it has not run
    double factor = deferred.momentum.value_or(0);
    if (deferred.num_batches_tracked.defined()) {
      deferred.num_batches_tracked.variable_data().add_(1);
      if (!deferred.momentum) factor = 1 / deferred.num_batches_tracked.item<double>();
    }
    update(deferred.running_mean, deferred.moments.mean, factor);
    update(deferred.running_var, deferred.moments.unbiased_variance(), factor);
    deferred.moments = {};
  }
}

}  // namespace shoal::parallel
