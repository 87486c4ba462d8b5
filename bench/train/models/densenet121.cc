#include "bench/train/models/densenet121.h"

#include <array>
#include <string>

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
      : announcing_(network),
        norm_(register_module("norm", nn::BatchNorm2d(shape.in))),
        convolution_(register_module("conv", make_convolution(shape))) {}

  Tensor forward(const Tensor& input) { return announcing_.run(convolution_, announcing_.run(norm_, input).relu_()); }

 private:
  const ddp::Announcing announcing_;
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
  DenseNet121(int channels, int classes) {
    add_layer("stem", register_module("stem", make_convolution({.in = channels, .out = 2 * kGrowth})));
    const auto layers = register_module("layers", nn::ModuleList());
    const auto add_next = [&](const auto& layer) {
      add_block("layers." + std::to_string(layers->size()), layer);
      layers->push_back(layer);
    };
    int width = 2 * kGrowth;
    for (std::size_t block = 0; block < kLayers.size(); ++block) {
      for (int layer = 0; layer < kLayers[block]; ++layer, width += kGrowth) {
        add_next(std::make_shared<DenseLayer>(*this, width));
      }
      if (block + 1 == kLayers.size()) break;
      add_next(std::make_shared<Transition>(*this, width));
      width /= 2;
    }
    add_layer("norm", register_module("norm", nn::BatchNorm2d(width)));
    add_function("relu", rectify);
    add_function("mean", mean_over_image);
    add_layer("head", register_module("head", nn::Linear(width, classes)));
    start_convolutions(*this);
    add_pair({"layers.*.narrow.conv", {"layers.*.grow.norm"}, "layers.*.grow.conv"});
    keep_whole({"layers.*.narrow.norm"}, "works on the output of all layers before it, which every rank has");
    keep_whole({"layers.*.halve.conv", "layers.*.halve.norm"}, "a transition has one convolution, no pair");
    keep_whole({"stem", "norm", "head"}, kOutside);
  }
};

}  // namespace

std::shared_ptr<ImageClassifier> make_densenet121(int channels, int classes) {
  return std::make_shared<DenseNet121>(channels, classes);
}

}  // namespace shoal::models
