// Layers split over ranks, compared with the unsplit model on the same images.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/facts.h"
#include "tests/torch/forked_ranks.h"
#include "tests/torch/gpu_test.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;
using testing::run_torch_ranks;
using testing::TorchGroup;

constexpr std::uint64_t kSliceSeed = 23;

/// Two pairs: convolutions with norms and a depthwise convolution between, and linear layers.
struct PairsImpl final : nn::Module {
  explicit PairsImpl(LayerSlices layer_slices = {}) : slices(std::move(layer_slices)) {
    slices.split_outputs(conv1, "conv1");
    slices.split_channels(norm1, "norm1");
    slices.split_channels(depthwise, "depthwise");
    slices.split_channels(norm2, "norm2");
    slices.split_inputs(conv2, "conv2");
    slices.split_outputs(linear1, "linear1");
    slices.split_inputs(linear2, "linear2");
  }
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = norm1(slices.by_outputs(conv1, images)).relu();
    x = norm2(depthwise(x)).relu();
    x = norm3(slices.by_inputs(conv2, x)).mean({2, 3});
    x = slices.by_outputs(linear1, x).tanh();
    return slices.by_inputs(linear2, x);
  }
  static nn::Conv2dOptions side3(int in, int out) {
    return nn::Conv2dOptions(in, out, 3).padding(1).padding_mode(::torch::kReflect);
  }

  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(side3(3, 8)));
  nn::BatchNorm2d norm1 = register_module("norm1", nn::BatchNorm2d(8));
  nn::Conv2d depthwise = register_module("depthwise", nn::Conv2d(side3(8, 16).groups(8)));
  nn::BatchNorm2d norm2 = register_module("norm2", nn::BatchNorm2d(16));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(side3(16, 6)));
  nn::BatchNorm2d norm3 = register_module("norm3", nn::BatchNorm2d(6));
  nn::Linear linear1 = register_module("linear1", nn::Linear(6, 12));
  nn::Linear linear2 = register_module("linear2", nn::Linear(12, 5));
  LayerSlices slices;
};

/// The same initial values each time.
std::shared_ptr<PairsImpl> make_pairs(LayerSlices slices = {}) {
  ::torch::manual_seed(kSliceSeed);
  return std::make_shared<PairsImpl>(std::move(slices));
}

void require(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("not so: " + what);
}

/// The part of `whole`, named `name` in the unsplit model, that the rank of `slices` has.
at::Tensor own_part(const LayerSlices& slices, const std::string& name, const at::Tensor& whole) {
  for (const SplitTensor& split : slices.split()) {
    if (split.name != name) continue;
    require(split.whole_size == whole.size(split.dimension), "the whole size of " + name);
    const std::int64_t size = split.whole_size / slices.count();
    return whole.narrow(split.dimension, slices.index() * size, size);
  }
  return whole;
}

/// Throws if a parameter, its gradient where the unsplit model has one, or a buffer is off by more than `tolerance`.
void compare(const PairsImpl& found, const PairsImpl& wanted, double tolerance) {
  const auto check = [&](const std::string& what, const at::Tensor& one, const at::Tensor& other) {
    require(one.sizes() == other.sizes(), "the shape of " + what);
    const double difference = (one - other).abs().max().item<double>();
    require(difference <= tolerance, what + ", off by " + std::to_string(difference));
  };
  for (const auto& named : wanted.named_parameters()) {
    const at::Tensor& own = found.named_parameters()[named.key()];
    check(named.key(), own, own_part(found.slices, named.key(), named.value()));
    if (!named.value().grad().defined()) continue;
    require(own.grad().defined(), named.key() + " has a gradient");
    check("the gradient of " + named.key(), own.grad(), own_part(found.slices, named.key(), named.value().grad()));
  }
  for (const auto& named : wanted.named_buffers()) {
    check(named.key(), found.named_buffers()[named.key()], own_part(found.slices, named.key(), named.value()));
  }
}

/// Three steps of training of both, compared after each.
void train_beside_unsplit(const TorchGroup& group, at::ScalarType type, double tolerance, at::Device device = at::kCPU) {
  const auto split = make_pairs(LayerSlices(group));
  const auto whole = make_pairs();
  require(split->linear1->weight.size(0) == 12 / group->getSize(), "linear1 is split");
  compare(*split, *whole, 0);  // the same initial values, bit for bit
  split->to(device, type);
  whole->to(device, type);
  ::torch::optim::SGD split_optimizer(split->parameters(), 0.05);
  ::torch::optim::SGD whole_optimizer(whole->parameters(), 0.05);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor images = ::torch::randn({4, 3, 6, 6}, type).to(device);
    at::Tensor input = images.clone().requires_grad_();
    at::Tensor whole_input = images.clone().requires_grad_();
    split_optimizer.zero_grad();
    whole_optimizer.zero_grad();
    const at::Tensor output = split->forward(input);
    const at::Tensor wanted = whole->forward(whole_input);
    require((output - wanted).abs().max().item<double>() <= tolerance, "the output");
    output.square().sum().backward();
    wanted.square().sum().backward();
    require(whole_input.grad().abs().max().item<double>() > 1e-3, "the gradient of the input is not zero");
    require((input.grad() - whole_input.grad()).abs().max().item<double>() <= tolerance, "the gradient of the input");
    split_optimizer.step();
    whole_optimizer.step();
    compare(*split, *whole, tolerance);
  }
  split->eval();
  whole->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor images = ::torch::randn({2, 3, 6, 6}, type).to(device);
  require((split->forward(images) - whole->forward(images)).abs().max().item<double>() <= tolerance, "the evaluation");
}

TEST(LayerSlices, TrainingEqualsUnsplitModelInFloat64) {
  for (const int ranks : {2, 4}) {
    run_torch_ranks(ranks, [](const TorchGroup& group) { train_beside_unsplit(group, ::torch::kFloat64, 1e-12); });
  }
}

TEST(LayerSlices, TrainingEqualsUnsplitModelInFloat32) {
  run_torch_ranks(2, [](const TorchGroup& group) { train_beside_unsplit(group, ::torch::kFloat32, 2e-5); });
}

using LayerSlicesCuda = testing::GpuTest;

TEST_F(LayerSlicesCuda, TrainingEqualsUnsplitModel) {
  for (const int ranks : {2, 4}) {
    run_torch_ranks(ranks, [](const TorchGroup& group) { train_beside_unsplit(group, ::torch::kFloat64, 1e-10, gpu()); });
  }
}

// Parameters that are whole stay equal on all ranks because sums have the same bits on all of them.
TEST(LayerSlices, WholeParametersHaveTheSameBitsOnAllRanks) {
  run_torch_ranks(4, [](const TorchGroup& group) {
    const auto model = make_pairs(LayerSlices(group));
    ::torch::optim::SGD optimizer(model->parameters(), 0.05);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->forward(::torch::randn({4, 3, 6, 6})).square().sum().backward();
      optimizer.step();
    }
    for (const at::Tensor& own : {model->norm3->weight, model->norm3->running_var, model->linear2->bias}) {
      std::vector<at::Tensor> first{own.detach().clone()};
      group->broadcast(first)->wait();
      require(::torch::equal(first[0], own), "all ranks have the same bits");
    }
  });
}

TEST(LayerSlices, WithoutAGroupNothingIsSplit) {
  at::set_num_threads(1);
  const auto model = make_pairs();
  EXPECT_TRUE(model->slices.split().empty());
  EXPECT_EQ(model->conv1->weight.sizes(), (std::vector<std::int64_t>{8, 3, 3, 3}));
  const at::Tensor input = ::torch::ones({1, 3, 6, 6});
  EXPECT_TRUE(model->slices.shared_input(input).is_same(input));
  EXPECT_TRUE(model->slices.sum(input).is_same(input));
}

TEST(LayerSlices, RefusalsNameLayerAndNumbers) {
  run_torch_ranks(3, [](const TorchGroup& group) {
    const auto refuses = [](const std::function<void()>& body, const std::vector<std::string>& facts) {
      try {
        body();
      } catch (const c10::ValueError& error) {
        return require(testing::mentions_all(error.what(), facts), facts.front() + " and more in: " + error.what());
      }
      require(false, "throws for " + facts.front());
    };
    LayerSlices slices(group);
    nn::Conv2d conv(nn::Conv2dOptions(6, 8, 1));
    nn::Conv2d grouped(nn::Conv2dOptions(6, 6, 1).groups(2));
    nn::Conv2d depthwise(nn::Conv2dOptions(4, 4, 1).groups(4));
    nn::Linear linear(7, 7);
    nn::BatchNorm2d norm(10);
    refuses([&] { slices.split_outputs(conv, "block.conv"); }, {"block.conv", "8 output channels", "3"});
    refuses([&] { slices.split_inputs(grouped, "block.grouped"); }, {"block.grouped", "2 groups"});
    refuses([&] { slices.split_outputs(grouped, "block.grouped"); }, {"block.grouped", "2 groups"});
    refuses([&] { slices.split_channels(grouped, "block.grouped"); }, {"block.grouped", "2 groups", "6 input channels"});
    refuses([&] { slices.split_channels(depthwise, "deep"); }, {"deep", "4 output channels", "3"});
    refuses([&] { slices.split_outputs(linear, "head"); }, {"head", "7 outputs", "3"});
    refuses([&] { slices.split_inputs(linear, "head"); }, {"head", "7 inputs", "3"});
    refuses([&] { slices.split_channels(norm, "norm"); }, {"norm", "10 channels", "3"});
    require(slices.split().empty() && conv->weight.size(0) == 8 && conv->options.out_channels() == 8, "nothing was changed");
  });
}

}  // namespace
}  // namespace shoal::parallel
