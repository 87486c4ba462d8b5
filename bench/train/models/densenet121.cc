#include "bench/train/models/densenet121.h"

#include <array>

#include "bench/train/models/layers.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

constexpr int kGrowth = 32;
constexpr int kInnerWidth = 4 * kGrowth;
constexpr std::array<int, 4> kLayers{6, 12, 24, 16};

/// Normalise, ReLU, convolve: the opposite order of the other networks, because several layers read the input.
class NormConv : public nn::Module {
 public:
  NormConv(const ddp::Announcing& network, const ConvolutionShape& shape)
      : network_(network),
        norm_(register_module("norm", nn::BatchNorm2d(shape.in))),
        convolution_(register_module("conv", make_convolution(shape))) {}

  Tensor forward(const Tensor& input) { return network_.run(convolution_, network_.run(norm_, input).relu_()); }

 private:
  const ddp::Announcing& network_;
  nn::BatchNorm2d norm_;
  nn::Conv2d convolution_;
};

class DenseLayer : public nn::Module {
 public:
  DenseLayer(const ddp::Announcing& network, int in)
      : narrow_(register_module(
            "narrow", std::make_shared<NormConv>(network, ConvolutionShape{.in = in, .out = kInnerWidth, .side = 1}))),
        grow_(register_module("grow",
                              std::make_shared<NormConv>(network, ConvolutionShape{.in = kInnerWidth, .out = kGrowth}))) {}

  Tensor forward(const Tensor& input) { return at::cat({grow_->forward(narrow_->forward(input)), input}, 1); }

 private:
  std::shared_ptr<NormConv> narrow_;
  std::shared_ptr<NormConv> grow_;
};

class Transition : public nn::Module {
 public:
  Transition(const ddp::Announcing& network, int in)
      : halve_(register_module("halve",
                               std::make_shared<NormConv>(network, ConvolutionShape{.in = in, .out = in / 2, .side = 1}))) {}

  Tensor forward(const Tensor& input) { return at::avg_pool2d(halve_->forward(input), 2); }

 private:
  std::shared_ptr<NormConv> halve_;
};

class DenseNet121 final : public ImageClassifier {
 public:
  DenseNet121(int channels, int classes)
      : stem_(register_module("stem", make_convolution({.in = channels, .out = 2 * kGrowth}))) {
    int width = 2 * kGrowth;
    for (std::size_t block = 0; block < kLayers.size(); ++block) {
      for (int layer = 0; layer < kLayers[block]; ++layer, width += kGrowth) {
        layers_->push_back(std::make_shared<DenseLayer>(*this, width));
      }
      if (block + 1 == kLayers.size()) break;
      layers_->push_back(std::make_shared<Transition>(*this, width));
      width /= 2;
    }
    register_module("layers", layers_);
    norm_ = register_module("norm", nn::BatchNorm2d(width));
    head_ = register_module("head", nn::Linear(width, classes));
    start_convolutions(*this);
  }

  Tensor forward(Tensor images) override {
    const Tensor x = layers_->forward(run(stem_, images));
    return run(head_, mean_over_image(run(norm_, x).relu_()));
  }

 private:
  nn::Conv2d stem_;
  nn::Sequential layers_;
  nn::BatchNorm2d norm_{nullptr};
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<ImageClassifier> make_densenet121(int channels, int classes) {
  return std::make_shared<DenseNet121>(channels, classes);
}

}  // namespace shoal::models
