// The interface of the networks, and the list of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/ddp/announcing.h"

namespace shoal::models {

/// A network from images (N, channels, height, width) of 28 or 32 pixels to scores (N, classes). It announces its layers, so
/// that training can overlap communication with its forward.
class ImageClassifier : public ::torch::nn::Module, public ddp::Announcing {
 public:
  virtual at::Tensor forward(at::Tensor images) = 0;
};

/// One entry of the suite.
struct ModelInfo {
  std::string name;         ///< as given to --model
  std::string description;  ///< a line for `shoal_train models`
  std::shared_ptr<ImageClassifier> (*make)(int channels, int classes);
};

/// All networks, in the order in which they are listed.
const std::vector<ModelInfo>& all_models();

/// The entry with this name. Errors: invalid_argument with the names that exist.
Result<ModelInfo> find_model(const std::string& name);

/// The size of the trained parameters.
struct ModelSize {
  std::int64_t parameters = 0;  ///< number of elements
  std::int64_t tensors = 0;     ///< number of parameter tensors
  std::int64_t bytes = 0;       ///< of the parameters; their gradients have the same size
};
ModelSize measure(const ::torch::nn::Module& model);

}  // namespace shoal::models
