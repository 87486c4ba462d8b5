// Pairs of layers that several ranks share: the networks, compared with the unsplit ones; a pipeline of such stages; refusals.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/train/models/model.h"
#include "src/pipeline/layout.h"
#include "tests/torch/forked_ranks.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/tensor/layer_pairs.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using models::ImageClassifier;
using shoal::testing::run_torch_ranks;
using shoal::testing::TorchGroup;

constexpr std::uint64_t kPairsSeed = 31;

/// Convolutions with what may lie between them, and linear layers behind a flattened map.
struct SmallImpl final : nn::Module, ddp::Announcing {
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = run(norm, run(first, images)).relu();
    x = run(second, run(depthwise, x));
    return run(scores, run(hidden, x.flatten(1)).tanh());
  }
  nn::Conv2d first = register_module("first", nn::Conv2d(3, 4, 1));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(4));
  nn::Conv2d depthwise = register_module("depthwise", nn::Conv2d(nn::Conv2dOptions(4, 8, 1).groups(4)));
  nn::Conv2d second = register_module("second", nn::Conv2d(8, 6, 1));
  nn::Linear hidden = register_module("hidden", nn::Linear(24, 12));
  nn::Linear scores = register_module("scores", nn::Linear(12, 5));
  nn::GroupNorm other = register_module("other", nn::GroupNorm(2, 4));  // not run
  nn::Linear odd = register_module("odd", nn::Linear(9, 2));            // not run
};
at::Tensor small_images() {
  ::torch::manual_seed(kPairsSeed + 1);
  return ::torch::randn({3, 3, 2, 2}, at::kDouble);
}
std::shared_ptr<SmallImpl> make_small() {
  ::torch::manual_seed(kPairsSeed);
  auto model = std::make_shared<SmallImpl>();
  model->to(at::kDouble);
  return model;
}

std::shared_ptr<ImageClassifier> make_network(const std::string& name, at::ScalarType type) {
  ::torch::manual_seed(kPairsSeed);
  auto model = models::find_model(name)->make(3, 10);
  model->to(type);
  return model;
}
TensorSplit split_network(ImageClassifier& model, const TorchGroup& group) {
  return split_pairs(model, model, model.pairs(), group).value();
}

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

/// Compares tensors of a split model with those of the unsplit one.
class Comparison {
 public:
  Comparison(TorchGroup group, const std::vector<SplitTensor>& split, std::string model = "the model")
      : group_(std::move(group)), model_(std::move(model)) {
    for (const SplitTensor& each : split) split_[each.name] = each;
  }
  /// `tolerance` is relative to the largest number in `wanted`, or to `scale` if that is larger.
  void compare(const std::string& name, const at::Tensor& found, const at::Tensor& wanted, double tolerance,
               double scale = 0) const {
    const at::Tensor own = part(name, wanted);
    check(found.sizes() == own.sizes(), "the shape of " + name + " of " + model_);
    const double difference = largest(found - own) / std::max({largest(wanted), scale, 1e-300});
    check(difference <= tolerance, name + " of " + model_ + " is right, off by " + std::to_string(difference / tolerance) +
                                       " times " + c10::str(tolerance));
  }
  void compare_parameters(const nn::Module& found, const nn::Module& wanted, double tolerance) const {
    const auto own = found.named_parameters();
    for (const auto& each : wanted.named_parameters()) compare(each.key(), own[each.key()], each.value(), tolerance);
  }
  /// The bias of a convolution, in front of a norm, has a gradient of 0 but for rounding errors: hence the scale.
  void compare_gradients(const nn::Module& found, const nn::Module& wanted, double tolerance) const {
    const auto own = found.named_parameters();
    double most = 0;
    for (const auto& each : wanted.named_parameters()) most = std::max(most, largest(each.value().grad()));
    check(most > 1e-3, "there are gradients");
    for (const auto& each : wanted.named_parameters()) {
      const double scale = each.key().ends_with("conv.bias") ? most : most / 100;
      compare(each.key(), own[each.key()].grad(), each.value().grad(), tolerance, scale);
    }
  }
  /// Channels behind a norm have the mean 0 but for rounding errors: hence the scale.
  void compare_buffers(const nn::Module& found, const nn::Module& wanted, double tolerance) const {
    const auto own = found.named_buffers();
    for (const auto& each : wanted.named_buffers()) compare(each.key(), own[each.key()], each.value(), tolerance, 1);
  }

 private:
  [[nodiscard]] at::Tensor part(const std::string& name, const at::Tensor& whole) const {
    const auto found = split_.find(name);
    if (found == split_.end()) return whole;
    check(found->second.whole_size == whole.size(found->second.dimension), "the whole size of " + name);
    const std::int64_t size = found->second.whole_size / group_->getSize();
    return whole.narrow(found->second.dimension, group_->getRank() * size, size);
  }

  TorchGroup group_;
  std::string model_;
  std::map<std::string, SplitTensor> split_;
};

/// Each layer is split, or whole for a reason that the network gives.
void check_reasons(const TensorSplit& split, const std::string& name) {
  for (const WholeLayer& layer : split.whole) {
    check(layer.reason != "no pair has it", name + ": " + layer.name + " is in a pair, or whole for a reason");
  }
}
bool is_whole(const TensorSplit& split, const std::string& layer) {
  return std::ranges::any_of(split.whole, [&](const WholeLayer& whole) { return whole.name == layer; });
}

/// A forward and a backward in training mode, in float64; then an evaluation in float32. Norms of the few values that small
/// images leave enlarge rounding errors, and a value near 0 may fall on the other side of a ReLU, where gradients jump: in
/// float32 the unsplit network is no measure for a training step.
void step_beside_unsplit(const std::string& name, const TorchGroup& group) {
  const auto whole = make_network(name, at::kFloat);
  const auto model = make_network(name, at::kFloat);
  const TensorSplit split = split_network(*model, group);
  check_reasons(split, name);
  check(is_whole(split, "conv3_3.conv") == (name == "vgg16"), "the third convolution of a stage has no pair");
  const Comparison comparison(group, split.split, name);
  comparison.compare_parameters(*model, *whole, 0);  // the same initial values, bit for bit
  whole->to(at::kDouble);
  model->to(at::kDouble);
  ::torch::manual_seed(kPairsSeed + 1);
  const at::Tensor images = ::torch::randn({4, 3, 16, 16}, at::kDouble);
  const at::Tensor targets = at::arange(4);
  at::Tensor input = images.clone().requires_grad_();
  at::Tensor whole_input = images.clone().requires_grad_();
  const at::Tensor output = model->forward(input);
  const at::Tensor wanted = whole->forward(whole_input);
  comparison.compare("output", output, wanted, 1e-12);
  ::torch::cross_entropy_loss(output, targets).backward();
  ::torch::cross_entropy_loss(wanted, targets).backward();
  comparison.compare("gradient of the input", input.grad(), whole_input.grad(), 1e-12);
  comparison.compare_gradients(*model, *whole, 1e-12);
  comparison.compare_buffers(*model, *whole, 1e-12);
  whole->to(at::kFloat);
  model->to(at::kFloat);
  whole->eval();
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor float_images = images.to(at::kFloat);
  comparison.compare("evaluation in float32", model->forward(float_images), whole->forward(float_images), 1e-5);
}

TEST(LayerPairs, FiveNetworksEqualUnsplitOnes) {
  run_torch_ranks(2, [](const TorchGroup& group) {
    for (const char* name : {"resnet18", "vgg16", "mobilenet_v2", "shufflenet_v2_x1", "densenet121"}) {
      step_beside_unsplit(name, group);
    }
  });
}

TEST(LayerPairs, FourRanksEqualUnsplitNetwork) {
  run_torch_ranks(4, [](const TorchGroup& group) { step_beside_unsplit("mobilenet_v2", group); });
}

std::vector<std::string> names_of(const TensorSplit& split) {
  std::vector<std::string> names;
  for (const SplitTensor& each : split.split) names.push_back(each.name);
  return names;
}

TEST(LayerPairs, ReturnsWhatIsSplitAndWhyNot) {
  run_torch_ranks(2, [](const TorchGroup& group) {
    const auto model = make_small();
    const auto whole = make_small();
    const LayerPairs pairs{.pairs = {{"first", {"norm", "depthwise"}, "second"}, {"hid*", {}, "missing_*"}},
                           .whole = {{"sco*", "it is the last one"}}};
    const TensorSplit split = split_pairs(*model, *model, pairs, group).value();
    check(names_of(split) == std::vector<std::string>{"first.weight", "first.bias", "norm.weight", "norm.bias",
                                                      "norm.running_mean", "norm.running_var", "depthwise.weight",
                                                      "depthwise.bias", "second.weight"},
          "the split tensors");
    check(split.whole.size() == 4, "four layers are whole");
    check(split.whole[0].name == "hidden" && split.whole[0].reason.find("no layer 'missing_den'") != std::string::npos,
          "hidden lacks its second layer: " + split.whole[0].reason);
    check(split.whole[1].name == "scores" && split.whole[1].reason == "it is the last one", split.whole[1].reason);
    check(split.whole[2].name == "other" && split.whole[2].reason == "no pair has it", split.whole[2].reason);
    Comparison(group, split.split).compare("output", model->forward(small_images()), whole->forward(small_images()), 1e-12);
  });
}

// Slices of features behind a flattened map are those of its channels.
TEST(LayerPairs, SecondLayerMayReadAFlattenedMap) {
  run_torch_ranks(2, [](const TorchGroup& group) {
    const auto model = make_small();
    const auto whole = make_small();
    const TensorSplit split = split_pairs(*model, *model, {.pairs = {{"second", {}, "hidden"}}, .whole = {}}, group).value();
    check(model->hidden->weight.size(1) == 12, "hidden is split");
    Comparison(group, split.split).compare("output", model->forward(small_images()), whole->forward(small_images()), 1e-12);
  });
}

TEST(LayerPairs, OneRankSplitsNothing) {
  at::set_num_threads(1);
  const auto model = make_small();
  const LayerPairs pairs{.pairs = {{"first", {"norm", "depthwise"}, "second"}}, .whole = {}};
  const TensorSplit split = split_pairs(*model, *model, pairs, {}).value();
  EXPECT_TRUE(split.split.empty());
  EXPECT_EQ(split.whole.size(), 8U);
  EXPECT_EQ(split.whole.front().reason, "one rank has all slices");
}

TEST(LayerPairs, OtherDepthsHavePairsToo) {
  at::set_num_threads(1);
  for (const char* name : {"vgg11", "resnet50"}) {
    const auto model = make_network(name, at::kFloat);
    const auto split = split_pairs(*model, *model, model->pairs(), {});
    ASSERT_TRUE(split.ok()) << name << ": " << split.status().to_string();
    check_reasons(*split, name);
    EXPECT_EQ(std::ranges::count(split->whole, "one rank has all slices", &WholeLayer::reason),
              std::string(name) == "vgg11" ? 3 * 3 : 16 * 3);
  }
}

TEST(LayerPairs, RefusalsNameLayersAndChangeNothing) {
  run_torch_ranks(3, [](const TorchGroup& group) {
    const auto refuses = [&](const std::vector<LayerPair>& pairs, const std::vector<std::string>& facts) {
      const auto model = make_small();
      const auto whole = make_small();
      const auto split = split_pairs(*model, *model, {.pairs = pairs, .whole = {}}, group);
      check(!split.ok() && split.status().code() == StatusCode::invalid_argument, "refuses " + facts.front());
      check(shoal::testing::mentions_all(split.status().message(), facts),
            facts.front() + " and more in: " + split.status().message());
      Comparison(group, {}).compare_parameters(*model, *whole, 0);
      check_equal(model->forward(small_images()), whole->forward(small_images()), "the output");
    };
    const LayerPair good{"hidden", {}, "scores"};  // 12 features
    refuses({good, {"first", {"norm", "depthwise"}, "second"}}, {"first has 4 output channels", "tensor_parallel_degree 3"});
    refuses({good, {"depthwise", {}, "second"}}, {"depthwise has 4 groups"});
    refuses({good, {"other", {}, "second"}}, {"other is a GroupNorm", "over 3 ranks", "Conv2d"});
    refuses({{"hidden", {"other"}, "scores"}}, {"other is a GroupNorm", "over 3 ranks", "BatchNorm2d"});
    refuses({{"second", {}, "odd"}}, {"odd takes 9", "second", "returns 6"});
    refuses({{"hidden", {"no_norm"}, "scores"}}, {"no layer 'no_norm'", "hidden", "scores"});
    refuses({good, {"fi*rst", {}, "second"}}, {"no layer 'fi*rst'"});
    refuses({good, good}, {"hidden belongs to two pairs"});
  });
}

TEST(LayerPairs, ShuffleNetWith58ChannelsRefusesFourRanks) {
  run_torch_ranks(4, [](const TorchGroup& group) {
    const auto model = make_network("shufflenet_v2_x1", at::kFloat);
    const auto split = split_pairs(*model, *model, model->pairs(), group);
    check(shoal::testing::mentions_all(split.status().message(), {"units.0.branch.first.conv", "58", "4"}),
          split.status().to_string());
  });
}

// A stage keeps its layers and no others, and its sums, when the network has gone.
TEST(LayerPairs, StagesOutliveTheSplitNetwork) {
  run_torch_ranks(2, [](const TorchGroup& group) {
    ::torch::manual_seed(kPairsSeed + 1);
    const at::Tensor images = ::torch::randn({2, 3, 8, 8});
    const auto whole = make_network("shufflenet_v2_x0.5", at::kFloat);
    const Chain whole_chain = Chain::of(whole->parts()).value();
    std::shared_ptr<Unit> stage;
    std::weak_ptr<nn::Module> head;
    {
      const auto model = make_network("shufflenet_v2_x0.5", at::kFloat);
      split_network(*model, group);
      head = model->named_children()["head"];
      stage = Chain::of(model->parts())->stage(0, 4).value();
    }
    check(head.expired(), "the head is freed");
    const at::Tensor wanted = whole_chain.stage(0, 4).value()->forward(images);
    Comparison(group, {}).compare("output", stage->forward(images), wanted, 1e-5);
  });
}

// Two pipelines of two stages, whose ranks of the same stage share its layers.
TEST(LayerPairs, PipelineOfSplitStagesEqualsOneProcess) {
  run_ranks(4, [](Communicator& all) {
    const auto layout = *pipeline::Layout::create(4, 2, 2, false, *pipeline::parse_placement("cluster"));
    const pipeline::Position position = layout.position(all.rank());
    const auto whole = make_network("shufflenet_v2_x0.5", at::kDouble);
    const auto slices = make_group(all, layout.group(all.rank(), pipeline::Axis::tensor));
    TensorSplit split;
    std::shared_ptr<Unit> stage;
    {
      const auto model = make_network("shufflenet_v2_x0.5", at::kDouble);
      split = split_network(*model, slices);
      const Chain chain = Chain::of(model->parts()).value();
      stage = (position.stage == 0 ? chain.stage(0, 9) : chain.stage(9, chain.size())).value();
    }
    const auto ranks = *all.group(layout.group(all.rank(), pipeline::Axis::pipeline));
    PipelineModel model(stage, *ranks, {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 2});
    ::torch::manual_seed(kPairsSeed + 1);
    const at::Tensor images = ::torch::randn({8, 3, 16, 16}, at::kDouble);
    const at::Tensor targets = at::arange(8);
    const StepOutput losses = position.stage == 0 ? model.step(images, targets, cross_entropy)  // on both ranks of the stage
                                                  : model.step({}, {}, cross_entropy);
    const Comparison comparison(slices, split.split);
    for (int i = 0; i < 2; ++i) {
      const at::Tensor loss = cross_entropy(whole->forward(images.narrow(0, 4 * i, 4)), targets.narrow(0, 4 * i, 4));
      (loss / 2).backward();
      comparison.compare("loss", losses.outputs()[static_cast<std::size_t>(i)], loss.detach(), 1e-12);
    }
    const Chain chain = Chain::of(whole->parts()).value();
    const auto wanted = (position.stage == 0 ? chain.stage(0, 9) : chain.stage(9, chain.size())).value();
    comparison.compare_gradients(*stage, *wanted, 1e-12);
    comparison.compare_buffers(*stage, *wanted, 1e-12);
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
