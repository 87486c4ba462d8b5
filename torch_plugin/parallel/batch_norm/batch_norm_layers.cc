#include "torch_plugin/parallel/batch_norm/batch_norm_layers.h"

namespace shoal::parallel {
namespace {

template <typename Layer>
void add_if(const std::string& name, ::torch::nn::Module& module, std::vector<BatchNormLayer>& found) {
  auto* const layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return;
  found.push_back(
      {name, layer, &layer->options, &layer->weight, &layer->running_mean, &layer->running_var, &layer->num_batches_tracked});
}

}  // namespace

std::vector<BatchNormLayer> batch_norm_layers(const ::torch::nn::Module& module) {
  std::vector<BatchNormLayer> found;
  for (const auto& named : module.named_modules("", /*include_self=*/false)) {
    add_if<::torch::nn::BatchNorm1dImpl>(named.key(), *named.value(), found);
    add_if<::torch::nn::BatchNorm2dImpl>(named.key(), *named.value(), found);
    add_if<::torch::nn::BatchNorm3dImpl>(named.key(), *named.value(), found);
  }
  return found;
}

}  // namespace shoal::parallel
