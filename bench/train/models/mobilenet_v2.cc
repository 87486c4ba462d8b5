#include "bench/train/models/mobilenet_v2.h"

#include <array>

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
  MobileNetV2(int channels, int classes)
      : stem_(register_module("stem", std::make_shared<ConvNorm>(*this, ConvolutionShape{.in = channels, .out = kStemWidth}))) {
    int in = kStemWidth;
    for (const Stage& stage : kStages) {
      for (int block = 0; block < stage.blocks; ++block) {
        blocks_->push_back(
            std::make_shared<InvertedResidual>(*this, in, stage.width, stage.expansion, block == 0 ? stage.stride : 1));
        in = stage.width;
      }
    }
    register_module("blocks", blocks_);
    last_ =
        register_module("last", std::make_shared<ConvNorm>(*this, ConvolutionShape{.in = in, .out = kHeadWidth, .side = 1}));
    head_ = register_module("head", nn::Linear(kHeadWidth, classes));
    start_convolutions(*this);
  }

  Tensor forward(Tensor images) override {
    Tensor x = blocks_->forward(clipped_relu(stem_->forward(images)));
    x = clipped_relu(last_->forward(x));
    return run(head_, mean_over_image(x));
  }

 private:
  std::shared_ptr<ConvNorm> stem_;
  nn::Sequential blocks_;
  std::shared_ptr<ConvNorm> last_;
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<ImageClassifier> make_mobilenet_v2(int channels, int classes) {
  return std::make_shared<MobileNetV2>(channels, classes);
}

}  // namespace shoal::models
