// The interface of the networks, and the list of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/ddp/announcing.h"
#include "torch_plugin/parallel/chain/part.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"

namespace shoal::models {

/// A network from images (N, channels, height, width) of 28 or 32 pixels to scores (N, classes). It announces its layers, so
/// that training can overlap communication with its forward.
class ImageClassifier : public ::torch::nn::Module, public ddp::Announcing {
 public:
  /// Runs the parts, one after the other.
  virtual at::Tensor forward(at::Tensor images);
  /// What forward() does, for parallel::Chain::of(). They share the modules of the network and need nothing else of it.
  [[nodiscard]] const std::vector<parallel::Part>& parts() const { return parts_; }
  /// The layers that several ranks can share, for parallel::split_pairs().
  [[nodiscard]] const parallel::LayerPairs& pairs() const { return pairs_; }

 protected:
  /// The next part of forward() is `block`, registered as `name`, with dots if inside others. It announces its own layers.
  template <typename Block>
  void add_block(const std::string& name, const std::shared_ptr<Block>& block) {
    parts_.push_back(parallel::make_part(name, block));
  }
  /// The next part of forward() is `layer`, registered as `name`, which the network announces.
  template <typename Layer>
  void add_layer(const std::string& name, const std::shared_ptr<Layer>& layer) {
    parts_.push_back({name, {{name, layer}}, [announcing = ddp::Announcing(*this), layer](const at::Tensor& x) {
                        return announcing.run(layer, x);
                      }});
  }
  /// The next part is a function without parameters, which may change its input in place.
  void add_function(const std::string& name, std::function<at::Tensor(at::Tensor)> function) {
    parts_.push_back({name, {}, std::move(function)});
  }
  /// Several ranks can share these layers.
  void add_pair(parallel::LayerPair pair) { pairs_.pairs.push_back(std::move(pair)); }
  /// Why layers belong to no pair.
  void keep_whole(const std::vector<std::string>& patterns, const std::string& reason) {
    for (const std::string& pattern : patterns) pairs_.whole.push_back({pattern, reason});
  }
  /// Reasons that several networks have.
  static constexpr const char* kOutside = "outside of the blocks";
  static constexpr const char* kBehindSum = "works on the sum, which every rank has";

 private:
  std::vector<parallel::Part> parts_;
  parallel::LayerPairs pairs_;
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
