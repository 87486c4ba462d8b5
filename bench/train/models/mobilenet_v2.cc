#include "bench/train/models/mobilenet_v2.h"

#include <array>
#include <string>

#include "bench/train/models/layers.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

constexpr int kStemWidth = 32;
constexpr int kHeadWidth = 1280;

/// Blocks in a row; the first of them has the stride.
struct Stage {
  int expansion;
  int width;
  int blocks;
  int stride;
};
constexpr std::array<Stage, 7> kStages{
    {{1, 16, 1, 1}, {6, 24, 2, 1}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}}};

Tensor clipped_relu(Tensor x) { return ::torch::relu6_(x); }

class InvertedResidual : public nn::Module {
 public:
  InvertedResidual(const ddp::Announcing& network, int in, int out, int expansion, int stride) : adds_(stride == 1) {
    const int inner = in * expansion;
    const auto add = [&](const char* name, const ConvolutionShape& shape) {
      return register_module(name, std::make_shared<ConvNorm>(network, shape));
    };
    widen_ = add("widen", {.in = in, .out = inner, .side = 1});
    depthwise_ = add("depthwise", {.in = inner, .out = inner, .stride = stride, .groups = inner});
    narrow_ = add("narrow", {.in = inner, .out = out, .side = 1});
    if (adds_ && in != out) shortcut_ = add("shortcut", {.in = in, .out = out, .side = 1});
  }

  Tensor forward(const Tensor& input) {
    Tensor x = clipped_relu(widen_->forward(input));
    x = clipped_relu(depthwise_->forward(x));
    x = narrow_->forward(x);
    if (adds_) x += shortcut_ ? shortcut_->forward(input) : input;
    return x;
  }

 private:
  const bool adds_;
  std::shared_ptr<ConvNorm> widen_;
  std::shared_ptr<ConvNorm> depthwise_;
  std::shared_ptr<ConvNorm> narrow_;
  std::shared_ptr<ConvNorm> shortcut_;
};

class MobileNetV2 final : public ImageClassifier {
 public:
  MobileNetV2(int channels, int classes) {
    const ConvolutionShape stem{.in = channels, .out = kStemWidth};
    add_block("stem", register_module("stem", std::make_shared<ConvNorm>(*this, stem)));
    add_function("relu6", clipped_relu);
    const auto blocks = register_module("blocks", nn::ModuleList());
    int in = kStemWidth;
    for (const Stage& stage : kStages) {
      for (int block = 0; block < stage.blocks; ++block) {
        const int stride = block == 0 ? stage.stride : 1;
        const auto added = std::make_shared<InvertedResidual>(*this, in, stage.width, stage.expansion, stride);
        add_block("blocks." + std::to_string(blocks->size()), added);
        blocks->push_back(added);
        in = stage.width;
      }
    }
    const ConvolutionShape last{.in = in, .out = kHeadWidth, .side = 1};
    add_block("last", register_module("last", std::make_shared<ConvNorm>(*this, last)));
    add_function("relu6", clipped_relu);
    add_function("mean", mean_over_image);
    add_layer("head", register_module("head", nn::Linear(kHeadWidth, classes)));
    start_convolutions(*this);
    add_pair({"blocks.*.widen.conv",
              {"blocks.*.widen.norm", "blocks.*.depthwise.conv", "blocks.*.depthwise.norm"},
              "blocks.*.narrow.conv"});
    keep_whole({"blocks.*.narrow.norm"}, kBehindSum);
    keep_whole({"blocks.*.shortcut.conv", "blocks.*.shortcut.norm"}, "a shortcut has one layer, no pair");
    keep_whole({"stem.*", "last.*", "head"}, kOutside);
  }
};

}  // namespace

std::shared_ptr<ImageClassifier> make_mobilenet_v2(int channels, int classes) {
  return std::make_shared<MobileNetV2>(channels, classes);
}

}  // namespace shoal::models
