#include <algorithm>

#include "torch_plugin/models/model.h"
#include "torch_plugin/models/resnet18.h"

namespace shoal::models {

const std::vector<ModelInfo>& all_models() {
  static const std::vector<ModelInfo> kModels{
      {"resnet18",
       "ResNet18 for small images: 3 x 3 stem, 8 residual blocks; 11,173,962 parameters for 3 channels and 10 classes",
       make_resnet18},
  };
  return kModels;
}

Result<ModelInfo> find_model(const std::string& name) {
  const auto& models = all_models();
  const auto found = std::ranges::find(models, name, &ModelInfo::name);
  if (found != models.end()) return *found;
  std::string known;
  for (const ModelInfo& model : models) known += (known.empty() ? "" : ", ") + model.name;
  return Status(StatusCode::invalid_argument, "unknown model \"" + name + "\"; known: " + known);
}

std::int64_t count_parameters(const ::torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) count += parameter.numel();
  }
  return count;
}

}  // namespace shoal::models
