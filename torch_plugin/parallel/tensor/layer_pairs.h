// split_pairs(): tensor parallelism for a model that names the pairs of layers to split.
#pragma once

#include <string>
#include <vector>

#include <torch/torch.h>

#include <shoal/status.h>

#include "torch_plugin/ddp/announcing.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"

namespace shoal::parallel {

/// Layers between which each rank works on its own channels. The names are those in the model. Each may have one '*', which
/// stands for the same characters in all names of a pair: {"blocks.*.conv1", {"blocks.*.norm1"}, "blocks.*.conv2"}.
struct LayerPair {
  std::string first;                 ///< split by its outputs: a linear layer or a convolution
  std::vector<std::string> between;  ///< split by channels, in the order in which they run: norms, depthwise convolutions
  std::string second;                ///< split by its inputs: a linear layer or a convolution
};

/// Why layers stay whole.
struct WholeReason {
  std::string pattern;  ///< of their names; may have one '*'
  std::string reason;
};

/// How a model is split.
struct LayerPairs {
  std::vector<LayerPair> pairs;
  std::vector<WholeReason> whole;
};

/// A layer of which each rank has all parameters.
struct WholeLayer {
  std::string name;
  std::string reason;
};

/// What split_pairs() did to each layer with parameters.
struct TensorSplit {
  std::vector<SplitTensor> split;
  std::vector<WholeLayer> whole;  ///< in the order of the model
};

/// Splits the pairs of `model` over the ranks of `group`, and makes run() of `announcing` add up what the ranks compute,
/// forward and backward. So the model must run the first and second layer of each pair by it; its code does not change. The
/// model must have all initial values, the same on all ranks, and its parameters must belong to no optimizer yet. Stages that
/// share modules of the model stay split when the model has gone. A null group leaves all layers whole.
///
/// A first layer whose pair has no second layer in the model stays whole, and is listed so. Everything else is checked before
/// anything is changed. Errors, the same on all ranks, with the model unchanged: invalid_argument that names the layer, and the
/// numbers or the kind of layer, for sizes that the ranks do not divide, kinds that cannot be split, layers of a pair that are
/// missing, do not fit each other or belong to two pairs, and patterns that no layer has.
///
/// Collective: afterwards all ranks make the same forwards and backwards in the same order. Thread rule: one thread.
Result<TensorSplit> split_pairs(::torch::nn::Module& model, ddp::Announcing& announcing, const LayerPairs& pairs,
                                const LayerSlices::Group& group);

}  // namespace shoal::parallel
