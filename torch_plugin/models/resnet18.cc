#include "torch_plugin/models/resnet18.h"

namespace shoal::models {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

nn::Conv2d convolution(int in, int out, int side, int stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, side).stride(stride).padding(side / 2).bias(false));
}

/// Two 3 x 3 convolutions beside a shortcut; the shortcut is a 1 x 1 convolution where the shape changes.
class BasicBlock : public nn::Module {
 public:
  BasicBlock(const ddp::Announcing& network, int in, int out, int stride)
      : network_(network),
        conv1_(register_module("conv1", convolution(in, out, 3, stride))),
        norm1_(register_module("norm1", nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", convolution(out, out, 3, 1))),
        norm2_(register_module("norm2", nn::BatchNorm2d(out))) {
    if (in != out || stride != 1) {
      shortcut_ = register_module("shortcut", nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }

  Tensor forward(const Tensor& input) {
    Tensor x = network_.run(norm1_, network_.run(conv1_, input)).relu_();
    x = network_.run(norm2_, network_.run(conv2_, x));
    x += shortcut_ ? network_.run(shortcut_, input) : input;
    return x.relu_();
  }

 private:
  const ddp::Announcing& network_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d norm1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d norm2_;
  nn::Sequential shortcut_{nullptr};
};

class ResNet18 final : public ImageClassifier {
 public:
  ResNet18(int channels, int classes)
      : stem_(register_module("stem", convolution(channels, 64, 3, 1))), norm_(register_module("norm", nn::BatchNorm2d(64))) {
    int width = 64;
    for (const int next : {64, 128, 256, 512}) {
      blocks_->push_back(BasicBlock(*this, width, next, next == 64 ? 1 : 2));
      blocks_->push_back(BasicBlock(*this, next, next, 1));
      width = next;
    }
    register_module("blocks", blocks_);
    head_ = register_module("head", nn::Linear(width, classes));
    for (auto& module : modules(/*include_self=*/false)) {
      // He et al., "Delving deep into rectifiers", ICCV 2015: the scale that keeps the variance through ReLU.
      if (auto* layer = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(layer->weight, 0, ::torch::kFanOut, ::torch::kReLU);
    }
  }

  Tensor forward(Tensor images) override {
    Tensor x = run(norm_, run(stem_, images)).relu_();
    x = blocks_->forward(x);
    return run(head_, x.mean({2, 3}));
  }

 private:
  nn::Conv2d stem_;
  nn::BatchNorm2d norm_;
  nn::Sequential blocks_;
  nn::Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<ImageClassifier> make_resnet18(int channels, int classes) {
  return std::make_shared<ResNet18>(channels, classes);
}

}  // namespace shoal::models
