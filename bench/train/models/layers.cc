#include "bench/train/models/layers.h"

namespace shoal::models {

namespace nn = ::torch::nn;

nn::Conv2d make_convolution(const ConvolutionShape& shape) {
  return nn::Conv2d(nn::Conv2dOptions(shape.in, shape.out, shape.side)
                        .stride(shape.stride)
                        .padding(shape.side / 2)
                        .groups(shape.groups)
                        .bias(shape.bias));
}

ConvNorm::ConvNorm(const ddp::Announcing& network, const ConvolutionShape& shape)
    : announcing_(network),
      convolution_(register_module("conv", make_convolution(shape))),
      norm_(register_module("norm", nn::BatchNorm2d(shape.out))) {}

void start_convolutions(nn::Module& network) {
  for (auto& module : network.modules(/*include_self=*/false)) {
    if (auto* layer = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(layer->weight, 0, ::torch::kFanOut, ::torch::kReLU);
  }
}

at::Tensor mean_over_image(const at::Tensor& x) { return x.mean({2, 3}); }

at::Tensor rectify(const at::Tensor& x) { return x.relu_(); }

}  // namespace shoal::models
