// Building blocks of the networks.
#pragma once

#include <torch/torch.h>

#include "torch_plugin/ddp/announcing.h"

namespace shoal::models {

/// A convolution that keeps the sides at stride 1. Sides and strides in pixels.
struct ConvolutionShape {
  int in = 0;   ///< channels
  int out = 0;  ///< channels
  int side = 3;
  int stride = 1;
  int groups = 1;  ///< `in` for a depthwise convolution
  bool bias = false;
};

::torch::nn::Conv2d make_convolution(const ConvolutionShape& shape);

/// A convolution and the batch normalisation of its result; announced separately.
class ConvNorm : public ::torch::nn::Module {
 public:
  ConvNorm(const ddp::Announcing& network, const ConvolutionShape& shape);

  at::Tensor forward(const at::Tensor& input) { return announcing_.run(norm_, announcing_.run(convolution_, input)); }

 private:
  const ddp::Announcing announcing_;
  ::torch::nn::Conv2d convolution_;
  ::torch::nn::BatchNorm2d norm_;
};

/// Initialises all convolutions of `network` at the scale that keeps the variance of gradients through ReLU. Source: He et
/// al., "Delving deep into rectifiers", ICCV 2015.
void start_convolutions(::torch::nn::Module& network);

/// The mean over the image: (N, channels, height, width) to (N, channels).
at::Tensor mean_over_image(const at::Tensor& x);
/// max(x, 0), in place.
at::Tensor rectify(const at::Tensor& x);

}  // namespace shoal::models
