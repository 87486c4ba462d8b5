#include <algorithm>
#include <utility>

#include "bench/train/models/densenet121.h"
#include "bench/train/models/mobilenet_v2.h"
#include "bench/train/models/model.h"
#include "bench/train/models/resnet.h"
#include "bench/train/models/shufflenet_v2.h"
#include "bench/train/models/vgg.h"

namespace shoal::models {

at::Tensor ImageClassifier::forward(at::Tensor images) {
  at::Tensor x = std::move(images);
  for (const parallel::Part& part : parts_) x = part.forward(std::move(x));
  return x;
}

const std::vector<ModelInfo>& all_models() {
  static const std::vector<ModelInfo> all{
      {"vgg11", "plain 3 x 3 convolutions, with batch normalisation", make_vgg11},
      {"vgg13", "the same, deeper", make_vgg13},
      {"vgg16", "the same, deeper", make_vgg16},
      {"vgg19", "the same, deeper", make_vgg19},
      {"resnet18", "8 residual blocks of two convolutions", make_resnet18},
      {"resnet34", "16 residual blocks of two convolutions", make_resnet34},
      {"resnet50", "16 residual blocks with bottlenecks", make_resnet50},
      {"mobilenet_v2", "inverted residual blocks, depthwise convolutions", make_mobilenet_v2},
      {"shufflenet_v2_x0.5", "channel shuffles between halves, half as wide", make_shufflenet_v2_x0_5},
      {"shufflenet_v2_x1", "channel shuffles between halves", make_shufflenet_v2_x1},
      {"shufflenet_v2_x1.5", "channel shuffles between halves, wider", make_shufflenet_v2_x1_5},
      {"shufflenet_v2_x2", "channel shuffles between halves, wider", make_shufflenet_v2_x2},
      {"densenet121", "58 layers that see all layers before them in their block", make_densenet121},
  };
  return all;
}

Result<ModelInfo> find_model(const std::string& name) {
  const auto& models = all_models();
  const auto found = std::ranges::find(models, name, &ModelInfo::name);
  if (found != models.end()) return *found;
  std::string known;
  for (const ModelInfo& model : models) known += (known.empty() ? "" : ", ") + model.name;
  return Status(StatusCode::invalid_argument, "unknown model \"" + name + "\"; known: " + known);
}

ModelSize measure(const ::torch::nn::Module& model) {
  ModelSize size;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.requires_grad()) continue;
    size.parameters += parameter.numel();
    size.bytes += static_cast<std::int64_t>(parameter.nbytes());
    ++size.tensors;
  }
  return size;
}

}  // namespace shoal::models
