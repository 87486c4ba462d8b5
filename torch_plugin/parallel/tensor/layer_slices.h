// LayerSlices: layers that several ranks share. Each rank has a slice of the parameters and computes with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace shoal::parallel {

/// A parameter or buffer of which each rank has a slice.
struct SplitTensor {
  std::string name;         ///< in the unsplit model
  std::int64_t dimension;   ///< along which it is split
  std::int64_t whole_size;  ///< along that dimension, of all slices together
};

/// The slices of one rank in a group of ranks that train the same images. Without a group all layers stay whole, and every
/// function here does what the unsplit model does: a model is written once for both.
///
/// A pair of layers is split such that one sum in the forward and one in the backward suffice: the first layer by its outputs,
/// whatever works on each channel by channels, the second layer by its inputs:
///
///     slices.split_outputs(conv1, "conv1"); slices.split_channels(norm1, "norm1"); slices.split_inputs(conv2, "conv2");
///     ...
///     x = slices.by_outputs(conv1, x);       // backward adds up the gradients of x
///     x = norm1(x).relu();
///     x = slices.by_inputs(conv2, x);        // forward adds up what the ranks computed
///
/// The split_ functions replace the values of a module's parameters and buffers by this rank's slice, and its options by those
/// of the slice; names stay. A model draws all initial values first and is split afterwards, so the slices together have the
/// initial values of the unsplit model. To be called before an optimizer or DataParallel takes the parameters. `name` is the
/// module's name in the model, for split() and for messages. They throw c10::ValueError for a size that the number of ranks
/// does not divide; the message has the name and both numbers.
///
/// Collective: all ranks of the group make the same calls in the same order, backward included. The calls that communicate
/// throw the exceptions of the group's backend. Thread rule: one thread; the backward may run in autograd's threads.
/// Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019.
class LayerSlices {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  LayerSlices() = default;
  explicit LayerSlices(Group group) : group_(std::move(group)) {}

  [[nodiscard]] int index() const { return group_ ? group_->getRank() : 0; }
  [[nodiscard]] int count() const { return group_ ? group_->getSize() : 1; }

  /// Throw what the split_ functions below would throw, and change nothing.
  void check_outputs(const ::torch::nn::Linear& layer, const std::string& name) const;
  void check_outputs(const ::torch::nn::Conv2d& layer, const std::string& name) const;
  void check_inputs(const ::torch::nn::Linear& layer, const std::string& name) const;
  void check_inputs(const ::torch::nn::Conv2d& layer, const std::string& name) const;
  void check_channels(const ::torch::nn::BatchNorm2d& layer, const std::string& name) const;
  void check_channels(const ::torch::nn::Conv2d& layer, const std::string& name) const;

  /// This rank keeps the outputs (output channels) that are its slice. Not for grouped convolutions.
  void split_outputs(::torch::nn::Linear& layer, const std::string& name);
  void split_outputs(::torch::nn::Conv2d& layer, const std::string& name);
  /// This rank keeps the inputs (input channels) that are its slice, and the whole bias. Not for grouped convolutions.
  void split_inputs(::torch::nn::Linear& layer, const std::string& name);
  void split_inputs(::torch::nn::Conv2d& layer, const std::string& name);
  /// Between the two: works on each channel alone. The statistics of a channel are exact, because a rank has all its values.
  void split_channels(::torch::nn::BatchNorm2d& layer, const std::string& name);
  /// A depthwise convolution: as many groups as input channels. Throws c10::ValueError for another one.
  void split_channels(::torch::nn::Conv2d& layer, const std::string& name);

  /// A layer after split_outputs(): `input` is the same on all ranks, the result is this rank's channels.
  template <typename Layer>
  at::Tensor by_outputs(Layer& layer, const at::Tensor& input) const {
    return layer->forward(shared_input(input));
  }
  /// A layer after split_inputs(): `input` is this rank's channels, the result is the same on all ranks. The bias is added
  /// once, to the sum.
  at::Tensor by_inputs(::torch::nn::Linear& layer, const at::Tensor& input) const;
  at::Tensor by_inputs(::torch::nn::Conv2d& layer, const at::Tensor& input) const;

  /// `input` itself; backward adds up its gradient over the ranks.
  [[nodiscard]] at::Tensor shared_input(const at::Tensor& input) const;
  /// The sum of `partial` over the ranks; backward passes the gradient on.
  [[nodiscard]] at::Tensor sum(const at::Tensor& partial) const;

  /// What was split so far.
  [[nodiscard]] const std::vector<SplitTensor>& split() const { return split_; }

 private:
  void check_divisible(std::int64_t whole, const char* what, const std::string& name) const;
  /// Replaces `tensor` by its slice along `dimension` and notes it.
  void keep_slice(at::Tensor& tensor, std::int64_t dimension, const std::string& name);

  Group group_;
  std::vector<SplitTensor> split_;
};

}  // namespace shoal::parallel
