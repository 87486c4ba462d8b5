// The profiler: exact bytes, times of units that sleep, and a model that is afterwards what it was before.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "bench/train/models/model.h"
#include "src/pipeline/partitioner.h"
#include "tests/slack.h"
#include "torch_plugin/parallel/profiler/allocation_meter.h"
#include "torch_plugin/parallel/profiler/profiler.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;

constexpr ProfileOptions kQuickProfile{.warm_ups = 1, .runs = 1};

/// Passes its input on; the backward sleeps.
class SlowBackward final : public ::torch::autograd::Function<SlowBackward> {
 public:
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t milliseconds) {
    context->saved_data["milliseconds"] = milliseconds;
    return x.clone();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(std::chrono::milliseconds(context->saved_data["milliseconds"].toInt()));
    return {gradients[0], at::Tensor()};
  }
};

/// A small linear layer that sleeps in forward and backward, and longer in its forward number `slow_call`, from 1.
class Sleeper final : public Unit {
 public:
  Sleeper(int forward_ms, int backward_ms, int slow_call = 0)
      : forward_ms_(forward_ms), backward_ms_(backward_ms), slow_call_(slow_call) {}
  at::Tensor forward(at::Tensor input) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(++calls == slow_call_ ? 100 * forward_ms_ : forward_ms_));
    return SlowBackward::apply(linear_->forward(input), backward_ms_);
  }
  int calls = 0;

 private:
  const int forward_ms_;
  const int backward_ms_;
  const int slow_call_;
  nn::Linear linear_ = register_module("linear", nn::Linear(4, 4));
};

TEST(Profiler, TimesAreThoseOfEachUnit) {
  const auto first = std::make_shared<Sleeper>(10, 150);
  const auto second = std::make_shared<Sleeper>(80, 10);
  const Chain chain = Chain::of({make_part("first", first), make_part("second", second)}).value();
  const CoreDelay delay;
  const pipeline::Profile found = profile(chain, at::randn({2, 4})).value();
  EXPECT_EQ(found.unit_names(), (std::vector<std::string>{"first", "second"}));
  const auto expect_ms = [&delay](double us, double least) {
    EXPECT_GE(us, 1e3 * least);
    EXPECT_LT(us, 1e3 * (least + 60) + 1e6 * delay.allowance_s());  // less than with another long sleep
  };
  expect_ms(found.units[0].forward_us, 10);
  expect_ms(found.units[0].backward_us, 150);
  expect_ms(found.units[1].forward_us, 80);
  expect_ms(found.units[1].backward_us, 10);
  EXPECT_EQ(first->calls, 1 + 2 + 5 + 1);  // probe, warm-ups, runs, bytes
}

TEST(Profiler, MedianIgnoresASlowRun) {
  const auto unit = std::make_shared<Sleeper>(5, 0, /*slow_call=*/1 + 2 + 3);
  const CoreDelay delay;
  const pipeline::Profile found = profile(Chain::of({make_part("unit", unit)}).value(), at::randn({2, 4})).value();
  EXPECT_GE(found.units[0].forward_us, 5e3);
  EXPECT_LT(found.units[0].forward_us, 500e3 / 5 + 1e6 * delay.allowance_s())
      << "the mean of 5 runs has a fifth of the slow one";
}

TEST(Profiler, WarmUpsDoNotCount) {
  const auto unit = std::make_shared<Sleeper>(5, 0, /*slow_call=*/1 + 1);
  const CoreDelay delay;
  const pipeline::Profile found =
      profile(Chain::of({make_part("unit", unit)}).value(), at::randn({2, 4}), kQuickProfile).value();
  EXPECT_LT(found.units[0].forward_us, 100e3 + 1e6 * delay.allowance_s());
}

class ByFunction final : public Unit {
 public:
  explicit ByFunction(std::function<at::Tensor(at::Tensor)> function) : function_(std::move(function)) {}
  at::Tensor forward(at::Tensor input) override { return function_(linear_->forward(input)); }

 private:
  const std::function<at::Tensor(at::Tensor)> function_;
  nn::Linear linear_ = register_module("linear", nn::Linear(32, 32));
};

TEST(Profiler, BytesAreThoseThatAForwardLeaves) {
  const auto part = [](const char* name, const std::function<at::Tensor(at::Tensor)>& function) {
    return make_part(name, std::make_shared<ByFunction>(function));
  };
  const Chain chain = Chain::of({
                                    part("linear", [](const at::Tensor& x) { return x; }),
                                    part("relu6", [](const at::Tensor& x) { return ::torch::relu6(x); }),
                                    part("relu_", [](const at::Tensor& x) { return x.relu_(); }),
                                    part("frees",
                                         [](const at::Tensor& x) {
                                           return x + at::ones({10'000, 1}).sum();
                                         }),
                                    make_part("norm", nn::BatchNorm1d(32)),
                                })
                          .value();
  const pipeline::Profile found = profile(chain, at::randn({8, 32}), kQuickProfile).value();
  constexpr std::int64_t kOutput = 8 * 32 * 4;
  for (const pipeline::Unit& unit : found.units) {
    EXPECT_EQ(unit.output_bytes, kOutput) << unit.name;
    EXPECT_EQ(unit.output_shape, (std::vector<std::int64_t>{8, 32})) << unit.name;
  }
  EXPECT_EQ(found.units[0].stash_bytes, kOutput) << "its input belongs to the unit before";
  EXPECT_EQ(found.units[1].stash_bytes, 2 * kOutput) << "relu6 keeps its input";
  EXPECT_EQ(found.units[2].stash_bytes, kOutput) << "relu_ keeps its result";
  EXPECT_EQ(found.units[3].stash_bytes, kOutput) << "an addition keeps neither operand";
  EXPECT_EQ(found.units[4].stash_bytes, kOutput + 2 * 32 * 4) << "mean and deviation of the batch";
  constexpr std::int64_t kWeight = 32 * 32 * 4;
  EXPECT_GE(found.units[0].workspace_bytes, kOutput + kWeight)
      << "gradients of its output, and of its weight before it adds it";
  EXPECT_LE(found.units[0].workspace_bytes, 2 * kOutput + kWeight);
  EXPECT_GE(found.units[3].workspace_bytes, 40'000) << "what its forward frees";
  EXPECT_LE(found.units[3].workspace_bytes, 40'000 + 2 * kOutput);
  EXPECT_EQ(found.units[0].parameter_bytes, (32 * 32 + 32) * 4);
  EXPECT_EQ(found.units[0].buffer_bytes, 0);
  EXPECT_EQ(found.units[4].parameter_bytes, 2 * 32 * 4);
  EXPECT_EQ(found.units[4].buffer_bytes, 2 * 32 * 4 + 8);
}

TEST(Profiler, StashesAddUpToThatOfTheWholeModel) {
  ::torch::manual_seed(1);
  const auto model = models::find_model("mobilenet_v2")->make(3, 10);
  const at::Tensor images = at::randn({2, 3, 32, 32});
  const pipeline::Profile found = profile(Chain::of(model->parts()).value(), images, kQuickProfile).value();
  std::int64_t sum = 0;
  for (const pipeline::Unit& unit : found.units) sum += unit.stash_bytes;
  const AllocationMeter meter(at::kCPU);
  const at::Tensor scores = model->forward(images);
  EXPECT_EQ(sum, meter.bytes());
  EXPECT_GT(sum, 1'000'000);
}

TEST(Profiler, PeakIsTheMostAtTheSameTime) {
  AllocationMeter meter(at::kCPU);
  (void)at::zeros({1000});
  EXPECT_EQ(meter.bytes(), 0);
  EXPECT_EQ(meter.peak(), 4000);
  const at::Tensor kept = at::zeros({100});
  EXPECT_EQ(meter.peak(), 4000);
  meter.restart_peak();
  EXPECT_EQ(meter.peak(), 400);
}

/// A model with all that a run could change.
nn::Sequential touchy_model() {
  ::torch::manual_seed(3);
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).bias(false)), nn::BatchNorm2d(8), nn::ReLU(), nn::Dropout(0.5),
                        nn::Conv2d(8, 4, 3), nn::BatchNorm2d(4), nn::Flatten(), nn::Linear(64, 5));
}

TEST(Profiler, ModelIsAfterwardsWhatItWasBefore) {
  const at::Tensor images = at::randn({6, 3, 8, 8});
  const auto step = [&](nn::Sequential& model) {  // one that shows buffers, gradients, generator and modes
    const at::Tensor loss = model->forward(images).square().sum();
    loss.backward();
    return loss.detach();
  };
  nn::Sequential twin = touchy_model();
  step(twin);
  twin->ptr(5)->eval();
  twin->ptr(0)->parameters().front().mutable_grad().reset();
  const at::Tensor wanted = step(twin);
  const at::Tensor wanted_number = at::rand({1});

  nn::Sequential model = touchy_model();
  step(model);
  model->ptr(5)->eval();
  model->ptr(0)->parameters().front().mutable_grad().reset();
  const auto profiled = profile(Chain::of(model).value(), images);
  ASSERT_TRUE(profiled.ok()) << profiled.status().message();
  EXPECT_FALSE(model->ptr(0)->parameters().front().grad().defined());
  EXPECT_TRUE(model->ptr(1)->is_training());
  EXPECT_FALSE(model->ptr(5)->is_training());
  EXPECT_TRUE(at::equal(step(model), wanted));
  EXPECT_TRUE(at::equal(at::rand({1}), wanted_number));
  const auto expect_same = [](const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
  };
  expect_same(model->buffers(), twin->buffers());
  expect_same(model->parameters(), twin->parameters());
  for (std::size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_TRUE(at::equal(model->parameters()[i].grad(), twin->parameters()[i].grad())) << i;
  }
}

TEST(Profiler, WorksUnderNoGradAndWithFrozenUnits) {
  nn::Sequential model = touchy_model();
  for (at::Tensor parameter : model->ptr(0)->parameters()) parameter.requires_grad_(false);
  const at::NoGradGuard no_grad;
  const auto found = profile(Chain::of(model).value(), at::randn({6, 3, 8, 8}), kQuickProfile);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_GT(found->units[1].backward_us, 0);
}

TEST(Profiler, FileIsReadAndPartitioned) {
  ::torch::manual_seed(1);
  const auto model = models::find_model("shufflenet_v2_x0.5")->make(1, 10);
  pipeline::Profile found = profile(Chain::of(model->parts()).value(), at::randn({4, 1, 28, 28}), kQuickProfile).value();
  found.model = "shufflenet_v2_x0.5";
  EXPECT_EQ(found.microbatch, 4);
  EXPECT_EQ(found.channels, 1);
  EXPECT_EQ(found.dtype, "float32");
  EXPECT_EQ(found.device, "cpu");
  EXPECT_EQ(found.threads, at::get_num_threads());
  const auto read = pipeline::parse_profile(pipeline::to_json(found), "the file");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(pipeline::check_model(*read, "the file", found).ok());
  EXPECT_TRUE(pipeline::differences(*read, "the file", found).empty());
  pipeline::PartitionRequest request;
  request.rules.shape.ranks = 2;
  request.rules.shape.microbatches = 4;
  const auto cut = pipeline::partition(*read, request);
  EXPECT_TRUE(cut.ok()) << cut.status().message();
}

struct WithUnused final : Unit {
  at::Tensor forward(at::Tensor input) override { return input * used; }
  at::Tensor used = register_parameter("used", at::ones({1}));
  at::Tensor unused = register_parameter("unused", at::ones({1}));
};

TEST(Profiler, BadRequestsAreNamed) {
  const auto expect_refused = [](const Result<pipeline::Profile>& found, const std::string& words) {
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(found.status().message().find(words), std::string::npos) << found.status().message();
  };
  const Chain chain = Chain::of({make_part("a", nn::Linear(4, 4)), make_part("b", nn::Linear(4, 4))}).value();
  expect_refused(profile(chain, at::ones({2, 4}), {.warm_ups = 0, .runs = 0}), "0 runs");
  expect_refused(profile(chain, at::ones({2, 4}), {.warm_ups = -1, .runs = 1}), "-1 warm-ups");
  expect_refused(profile(chain, at::Tensor()), "no images");
  expect_refused(profile(chain, at::ones({0, 4})), "no images");
  expect_refused(profile(chain, at::ones({2, 3})), "unit 'a', forward");
  const auto cuts = [](const at::Tensor& x) { return x.detach() * at::ones({1}, at::requires_grad()); };
  const auto cutting = Chain::of({make_part("a", nn::Linear(32, 32)), make_part("b", std::make_shared<ByFunction>(cuts))});
  expect_refused(profile(*cutting, at::ones({2, 32})), "unit 'b', backward: its input gets no gradient");
  const auto unused = Chain::of({make_part("a", nn::Linear(32, 32)), make_part("b", std::make_shared<WithUnused>())});
  expect_refused(profile(*unused, at::ones({2, 32})), "unit 'b', backward: its parameter b.unused gets no gradient");
}

}  // namespace
}  // namespace shoal::parallel
