#include "bench/train/models/vgg.h"

#include <array>
#include <string>

#include "bench/train/models/layers.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

using Convolutions = std::array<int, 5>;  // convolutions of each stage
constexpr std::array<int, 5> kStageWidths{64, 128, 256, 512, 512};

/// Sides are rounded up, so that 28 pixels allow five halvings too; 32 pixels are not affected.
Tensor halve_sides(const Tensor& x) {
  return ::torch::max_pool2d(x, /*kernel_size=*/2, /*stride=*/2, /*padding=*/0, /*dilation=*/1, /*ceil_mode=*/true);
}

class Vgg final : public ImageClassifier {
 public:
  Vgg(const Convolutions& convolutions, int channels, int classes) {
    int in = channels;
    for (std::size_t stage = 0; stage < convolutions.size(); ++stage) {
      std::string unpaired;  // the convolution before, if it belongs to no pair
      for (int layer = 0; layer < convolutions[stage]; ++layer) {
        const ConvolutionShape shape{.in = in, .out = kStageWidths[stage], .bias = true};
        const std::string name = "conv" + std::to_string(stage + 1) + "_" + std::to_string(layer + 1);
        add_block(name, register_module(name, std::make_shared<ConvNorm>(*this, shape)));
        add_function("relu", rectify);
        in = kStageWidths[stage];
        if (unpaired.empty()) {
          unpaired = name;
          continue;
        }
        add_pair({unpaired + ".conv", {unpaired + ".norm"}, name + ".conv"});
        keep_whole({name + ".norm"}, kBehindSum);
        unpaired.clear();
      }
      if (!unpaired.empty()) keep_whole({unpaired + ".*"}, "its stage has no convolution left for a pair");
      add_function("pool", halve_sides);
    }
    add_function("mean", mean_over_image);
    add_layer("head", register_module("head", nn::Linear(in, classes)));
    keep_whole({"head"}, kOutside);
    start_convolutions(*this);
  }
};

}  // namespace

std::shared_ptr<ImageClassifier> make_vgg11(int channels, int classes) {
  return std::make_shared<Vgg>(Convolutions{1, 1, 2, 2, 2}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_vgg13(int channels, int classes) {
  return std::make_shared<Vgg>(Convolutions{2, 2, 2, 2, 2}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_vgg16(int channels, int classes) {
  return std::make_shared<Vgg>(Convolutions{2, 2, 3, 3, 3}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_vgg19(int channels, int classes) {
  return std::make_shared<Vgg>(Convolutions{2, 2, 4, 4, 4}, channels, classes);
}

}  // namespace shoal::models
