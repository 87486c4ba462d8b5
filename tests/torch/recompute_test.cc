// Units that run again in the backward, compared bit for bit with units that keep their intermediate results.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include <ATen/autocast_mode.h>

#include "torch_plugin/package/torch.h"
#include "torch_plugin/parallel/recompute/recompute.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;

constexpr std::uint64_t kRecomputeSeed = 31;

/// A convolution, statistics, random numbers, and a linear layer.
class MixedUnit final : public Unit {
 public:
  explicit MixedUnit(int channels) : conv(nn::Conv2dOptions(channels, 4, 3).padding(1)) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("dropout", dropout);
  }
  at::Tensor forward(at::Tensor input) override {
    ++runs;
    if (throws_in_run == runs) throw std::runtime_error("this run throws");
    const at::Tensor hidden = conv(input);
    last_hidden = hidden.getIntrusivePtr();
    return dropout(norm(hidden).relu());
  }

  nn::Conv2d conv;
  nn::BatchNorm2d norm{4};
  nn::Dropout dropout{0.5};
  int runs = 0;
  int throws_in_run = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> last_hidden{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
};

/// Two units and what trains them.
struct Mixed {
  Mixed() {
    ::torch::manual_seed(kRecomputeSeed);
    first = std::make_shared<MixedUnit>(3);
    second = std::make_shared<MixedUnit>(4);
  }
  at::Tensor forward(const at::Tensor& images, bool recomputes) const {
    const auto run = [&](const std::shared_ptr<MixedUnit>& unit, const at::Tensor& x) {
      return recomputes ? recompute(unit, x) : unit->forward(x);
    };
    return run(second, run(first, images));
  }
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all;
    for (const auto& unit : {first, second}) {
      for (const at::Tensor& parameter : unit->parameters()) {
        all.push_back(parameter.detach().clone());
        all.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
      }
      for (const at::Tensor& buffer : unit->buffers()) all.push_back(buffer.clone());
    }
    all.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
    return all;
  }
  std::shared_ptr<MixedUnit> first, second;
};

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), wanted[i].defined()) << i;
    if (!found[i].defined()) continue;
    EXPECT_TRUE(::torch::equal(found[i], wanted[i])) << "tensor " << i;
  }
}

at::Tensor images_of(int microbatch) { return at::linspace(-1, 1, 2 * 3 * 5 * 5).view({2, 3, 5, 5}).mul(microbatch + 1).cos(); }

/// Four microbatches as in 1f1b: two forwards, then a backward and a forward in turn.
std::vector<at::Tensor> train_in_turns(bool recomputes, bool input_gradient) {
  at::set_num_threads(1);
  const Mixed model;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> inputs;
  const auto run_forward = [&](int microbatch) {
    inputs.push_back(images_of(microbatch).requires_grad_(input_gradient));
    outputs.push_back(model.forward(inputs.back(), recomputes));
  };
  run_forward(0);
  run_forward(1);
  for (int microbatch = 0; microbatch < 4; ++microbatch) {
    outputs[static_cast<std::size_t>(microbatch)].square().sum().backward();
    if (microbatch < 2) run_forward(microbatch + 2);
  }
  std::vector<at::Tensor> found = model.state();
  for (const at::Tensor& output : outputs) found.push_back(output.detach());
  for (const at::Tensor& input : inputs) found.push_back(input.grad());
  EXPECT_EQ(model.first->runs, recomputes ? 8 : 4);
  EXPECT_GT(found[1].abs().sum().item<double>(), 0);  // a gradient
  return found;
}

TEST(Recompute, SeveralMicrobatchesHaveTheSameBits) {
  for (const bool input_gradient : {false, true}) {
    expect_equal(train_in_turns(true, input_gradient), train_in_turns(false, input_gradient));
  }
}

TEST(Recompute, KeepsNoIntermediateResult) {
  at::set_num_threads(1);
  const Mixed model;
  const at::Tensor plain = model.forward(images_of(0), false);
  EXPECT_FALSE(model.first->last_hidden.expired());
  const at::Tensor recomputed = model.forward(images_of(0), true);
  EXPECT_TRUE(model.first->last_hidden.expired());
  recomputed.sum().backward();
  EXPECT_TRUE(model.first->last_hidden.expired());
}

TEST(Recompute, SecondRunHasSettingsOfTheFirst) {
  at::set_num_threads(1);
  const auto train = [](bool recomputes) {
    const Mixed model;
    model.first->eval();  // dropout and statistics are off
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor output = model.forward(images_of(0), recomputes);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    model.first->train();
    output.to(at::kFloat).square().sum().backward();
    EXPECT_TRUE(model.first->is_training());
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    return model.state();
  };
  expect_equal(train(true), train(false));
}

TEST(Recompute, WithoutGradientsRunsOnce) {
  at::set_num_threads(1);
  const Mixed model;
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(model.forward(images_of(0), true).requires_grad());
  EXPECT_EQ(model.first->runs, 1);
}

TEST(Recompute, ChangedInputIsRefused) {
  at::set_num_threads(1);
  const Mixed model;
  at::Tensor input = images_of(0);
  const at::Tensor output = recompute(model.first, input);
  input.add_(1);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

TEST(Recompute, ExceptionOfSecondRunLeavesNoTrace) {
  at::set_num_threads(1);
  const Mixed model;
  const at::Tensor output = recompute(model.first, images_of(0));
  const auto before = model.state();
  model.first->throws_in_run = 2;
  EXPECT_THROW(output.sum().backward(), std::runtime_error);
  expect_equal(model.state(), before);
}

}  // namespace
}  // namespace shoal::parallel
