#include "bench/train/models/resnet.h"

#include <array>
#include <string>
#include <vector>

#include "bench/train/models/layers.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

using Depths = std::array<int, 4>;  // blocks of each stage
constexpr std::array<int, 4> kWidths{64, 128, 256, 512};
constexpr int kBottleneckExpansion = 4;

/// Convolutions in parallel to a shortcut; the shortcut is a 1 x 1 convolution if the shape changes.
class Block : public nn::Module {
 public:
  Block(const ddp::Announcing& network, const std::vector<ConvolutionShape>& path) {
    int stride = 1;
    for (const ConvolutionShape& shape : path) {
      path_.push_back(register_module("conv" + std::to_string(path_.size() + 1), std::make_shared<ConvNorm>(network, shape)));
      stride *= shape.stride;
    }
    const int in = path.front().in;
    const int out = path.back().out;
    if (in != out || stride != 1) {
      const ConvolutionShape shape{.in = in, .out = out, .side = 1, .stride = stride};
      shortcut_ = register_module("shortcut", std::make_shared<ConvNorm>(network, shape));
    }
  }

  Tensor forward(const Tensor& input) {
    Tensor x = path_.front()->forward(input);
    for (std::size_t i = 1; i < path_.size(); ++i) x = path_[i]->forward(x.relu_());
    x += shortcut_ ? shortcut_->forward(input) : input;
    return x.relu_();
  }

 private:
  std::vector<std::shared_ptr<ConvNorm>> path_;
  std::shared_ptr<ConvNorm> shortcut_;
};

/// Two 3 x 3 convolutions.
std::vector<ConvolutionShape> basic_path(int in, int width, int stride) {
  return {{.in = in, .out = width, .stride = stride}, {.in = width, .out = width}};
}

/// A 3 x 3 convolution on few channels between two 1 x 1.
std::vector<ConvolutionShape> bottleneck_path(int in, int width, int stride) {
  return {{.in = in, .out = width, .side = 1},
          {.in = width, .out = width, .stride = stride},
          {.in = width, .out = kBottleneckExpansion * width, .side = 1}};
}

class ResNet final : public ImageClassifier {
 public:
  ResNet(const Depths& depths, bool bottleneck, int channels, int classes) {
    const ConvolutionShape stem{.in = channels, .out = kWidths[0]};
    add_block("stem", register_module("stem", std::make_shared<ConvNorm>(*this, stem)));
    add_function("relu", rectify);
    const auto blocks = register_module("blocks", nn::ModuleList());
    int in = kWidths[0];
    for (std::size_t stage = 0; stage < depths.size(); ++stage) {
      for (int block = 0; block < depths[stage]; ++block) {
        const int stride = stage > 0 && block == 0 ? 2 : 1;
        const auto path = bottleneck ? bottleneck_path(in, kWidths[stage], stride) : basic_path(in, kWidths[stage], stride);
        const auto added = std::make_shared<Block>(*this, path);
        add_block("blocks." + std::to_string(blocks->size()), added);
        blocks->push_back(added);
        in = path.back().out;
      }
    }
    add_function("mean", mean_over_image);
    add_layer("head", register_module("head", nn::Linear(in, classes)));
    start_convolutions(*this);
    add_pairs(bottleneck);
  }

 private:
  void add_pairs(bool bottleneck) {
    if (bottleneck) {
      add_pair({"blocks.*.conv2.conv", {"blocks.*.conv2.norm"}, "blocks.*.conv3.conv"});
      keep_whole({"blocks.*.conv1.conv", "blocks.*.conv1.norm"}, "before the pair of its block");
      keep_whole({"blocks.*.conv3.norm"}, kBehindSum);
    } else {
      add_pair({"blocks.*.conv1.conv", {"blocks.*.conv1.norm"}, "blocks.*.conv2.conv"});
      keep_whole({"blocks.*.conv2.norm"}, kBehindSum);
    }
    keep_whole({"blocks.*.shortcut.conv", "blocks.*.shortcut.norm"}, "a shortcut has one layer, no pair");
    keep_whole({"stem.*", "head"}, kOutside);
  }
};

}  // namespace

std::shared_ptr<ImageClassifier> make_resnet18(int channels, int classes) {
  return std::make_shared<ResNet>(Depths{2, 2, 2, 2}, false, channels, classes);
}

std::shared_ptr<ImageClassifier> make_resnet34(int channels, int classes) {
  return std::make_shared<ResNet>(Depths{3, 4, 6, 3}, false, channels, classes);
}

std::shared_ptr<ImageClassifier> make_resnet50(int channels, int classes) {
  return std::make_shared<ResNet>(Depths{3, 4, 6, 3}, true, channels, classes);
}

}  // namespace shoal::models
