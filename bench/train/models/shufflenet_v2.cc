#include "bench/train/models/shufflenet_v2.h"

#include <array>
#include <string>

#include "bench/train/models/layers.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

constexpr int kFirstWidth = 24;
constexpr std::array<int, 3> kUnits{4, 8, 4};

/// Channels after each stage, and of the last convolution.
struct Widths {
  std::array<int, 3> stages;
  int last;
};

/// Two groups of channels, interleaved.
Tensor shuffle(const Tensor& first, const Tensor& second) { return at::stack({first, second}, 2).flatten(1, 2); }

/// 1 x 1, depthwise 3 x 3, 1 x 1.
class Branch : public nn::Module {
 public:
  Branch(const ddp::Announcing& network, int in, int out, int stride)
      : first_(
            register_module("first", std::make_shared<ConvNorm>(network, ConvolutionShape{.in = in, .out = out, .side = 1}))),
        depthwise_(register_module(
            "depthwise",
            std::make_shared<ConvNorm>(network, ConvolutionShape{.in = out, .out = out, .stride = stride, .groups = out}))),
        second_(register_module("second",
                                std::make_shared<ConvNorm>(network, ConvolutionShape{.in = out, .out = out, .side = 1}))) {}

  Tensor forward(const Tensor& input) {
    const Tensor x = depthwise_->forward(first_->forward(input).relu_());
    return second_->forward(x).relu_();
  }

 private:
  std::shared_ptr<ConvNorm> first_;
  std::shared_ptr<ConvNorm> depthwise_;
  std::shared_ptr<ConvNorm> second_;
};

/// Keeps the shape.
class Unit : public nn::Module {
 public:
  Unit(const ddp::Announcing& network, int width)
      : branch_(register_module("branch", std::make_shared<Branch>(network, width / 2, width / 2, 1))) {}

  Tensor forward(const Tensor& input) {
    const std::vector<Tensor> halves = input.chunk(2, 1);
    return shuffle(halves[0], branch_->forward(halves[1]));
  }

 private:
  std::shared_ptr<Branch> branch_;
};

/// Halves the sides.
class DownUnit : public nn::Module {
 public:
  DownUnit(const ddp::Announcing& network, int in, int out)
      : depthwise_(register_module(
            "depthwise",
            std::make_shared<ConvNorm>(network, ConvolutionShape{.in = in, .out = in, .stride = 2, .groups = in}))),
        pointwise_(register_module("pointwise",
                                   std::make_shared<ConvNorm>(network, ConvolutionShape{.in = in, .out = out / 2, .side = 1}))),
        branch_(register_module("branch", std::make_shared<Branch>(network, in, out / 2, 2))) {}

  Tensor forward(const Tensor& input) {
    const Tensor left = pointwise_->forward(depthwise_->forward(input)).relu_();
    return shuffle(left, branch_->forward(input));
  }

 private:
  std::shared_ptr<ConvNorm> depthwise_;
  std::shared_ptr<ConvNorm> pointwise_;
  std::shared_ptr<Branch> branch_;
};

class ShuffleNetV2 final : public ImageClassifier {
 public:
  ShuffleNetV2(const Widths& widths, int channels, int classes) {
    const ConvolutionShape stem{.in = channels, .out = kFirstWidth};
    add_block("stem", register_module("stem", std::make_shared<ConvNorm>(*this, stem)));
    add_function("relu", rectify);
    const auto units = register_module("units", nn::ModuleList());
    const auto add_unit = [&](const auto& unit) {
      add_block("units." + std::to_string(units->size()), unit);
      units->push_back(unit);
    };
    int in = kFirstWidth;
    for (std::size_t stage = 0; stage < kUnits.size(); ++stage) {
      add_unit(std::make_shared<DownUnit>(*this, in, widths.stages[stage]));
      in = widths.stages[stage];
      for (int unit = 1; unit < kUnits[stage]; ++unit) add_unit(std::make_shared<Unit>(*this, in));
    }
    const ConvolutionShape last{.in = in, .out = widths.last, .side = 1};
    add_block("last", register_module("last", std::make_shared<ConvNorm>(*this, last)));
    add_function("relu", rectify);
    add_function("mean", mean_over_image);
    add_layer("head", register_module("head", nn::Linear(widths.last, classes)));
    start_convolutions(*this);
    add_pair({"units.*.branch.first.conv",
              {"units.*.branch.first.norm", "units.*.branch.depthwise.conv", "units.*.branch.depthwise.norm"},
              "units.*.branch.second.conv"});
    keep_whole({"units.*.branch.second.norm"}, kBehindSum);
    keep_whole({"units.*.depthwise.conv", "units.*.depthwise.norm", "units.*.pointwise.conv", "units.*.pointwise.norm"},
               "its branch has one convolution of all channels, no pair");
    keep_whole({"stem.*", "last.*", "head"}, kOutside);
  }
};

}  // namespace

std::shared_ptr<ImageClassifier> make_shufflenet_v2_x0_5(int channels, int classes) {
  return std::make_shared<ShuffleNetV2>(Widths{{48, 96, 192}, 1024}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_shufflenet_v2_x1(int channels, int classes) {
  return std::make_shared<ShuffleNetV2>(Widths{{116, 232, 464}, 1024}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_shufflenet_v2_x1_5(int channels, int classes) {
  return std::make_shared<ShuffleNetV2>(Widths{{176, 352, 704}, 1024}, channels, classes);
}

std::shared_ptr<ImageClassifier> make_shufflenet_v2_x2(int channels, int classes) {
  return std::make_shared<ShuffleNetV2>(Widths{{224, 488, 976}, 2048}, channels, classes);
}

}  // namespace shoal::models
