// Chains: the units of networks, stages that compute what the whole network computes, and what a chain refuses.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "bench/train/models/model.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/chain/probe.h"
#include "torch_plugin/parallel/chain/state_guard.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;

constexpr std::uint64_t kChainSeed = 7;

/// Values of a network after one training step's backward, by name.
using Values = std::map<std::string, at::Tensor>;

std::shared_ptr<models::ImageClassifier> seeded_network(const std::string& name) {
  ::torch::manual_seed(kChainSeed);
  return models::find_model(name)->make(3, 10);
}

at::Tensor some_images() {
  ::torch::manual_seed(kChainSeed + 1);
  return at::randn({3, 3, 32, 32});
}

at::Tensor loss_of(const at::Tensor& scores) { return ::torch::cross_entropy_loss(scores, at::arange(scores.size(0))); }

void collect(const nn::Module& module, Values& values) {
  for (const auto& named : module.named_parameters()) {
    values["parameter " + named.key()] = named.value().detach();
    values["gradient " + named.key()] = named.value().grad();
  }
  for (const auto& named : module.named_buffers()) values["buffer " + named.key()] = named.value();
}

Values whole_step(const std::string& name) {
  const auto model = seeded_network(name);
  const at::Tensor loss = loss_of(model->forward(some_images()));
  loss.backward();
  Values values{{"loss", loss.detach()}};
  collect(*model, values);
  return values;
}

/// The same in stages that begin at `cuts`: activations pass as leaves, as between ranks.
Values staged_step(const std::string& name, const std::vector<int>& cuts) {
  std::vector<std::shared_ptr<Unit>> stages;
  {
    const auto model = seeded_network(name);
    const Chain chain = Chain::of(model->parts()).value();
    int begin = 0;
    for (const int cut : cuts) stages.push_back(chain.stage(std::exchange(begin, cut), cut).value());
    stages.push_back(chain.stage(begin, chain.size()).value());
  }
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (const auto& stage : stages) {
    inputs.push_back(outputs.empty() ? some_images() : outputs.back().detach().requires_grad_());
    outputs.push_back(stage->forward(inputs.back()));
  }
  const at::Tensor loss = loss_of(outputs.back());
  loss.backward();
  for (std::size_t i = stages.size() - 1; i > 0; --i) outputs[i - 1].backward(inputs[i].grad());
  Values values{{"loss", loss.detach()}};
  for (const auto& stage : stages) collect(*stage, values);
  return values;
}

void expect_equal(const Values& found, const Values& wanted) {
  EXPECT_EQ(found.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_TRUE(value.defined()) << name;
    EXPECT_TRUE(at::equal(found.at(name), value)) << name;
  }
}

struct NetworkUnits {
  const char* name;
  int units;
};

class NetworkChain : public ::testing::TestWithParam<NetworkUnits> {};

TEST_P(NetworkChain, HasUnitsWithParametersInOrder) {
  const auto model = seeded_network(GetParam().name);
  const Chain chain = Chain::of(model->parts()).value();
  EXPECT_EQ(chain.size(), GetParam().units);
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  for (const Part& unit : chain.units()) {
    EXPECT_FALSE(unit.parameters().empty()) << unit.name;
    for (auto& named : unit.parameters()) parameters.push_back(named);
    for (auto& named : unit.buffers()) buffers.push_back(named);
  }
  const auto expect_all = [](const std::vector<NamedTensor>& found, const auto& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, wanted[i].key());
      EXPECT_TRUE(found[i].second.is_same(wanted[i].value())) << found[i].first;
    }
  };
  expect_all(parameters, model->named_parameters());
  expect_all(buffers, model->named_buffers());
}

TEST_P(NetworkChain, StagesComputeWhatTheWholeComputes) {
  const Values whole = whole_step(GetParam().name);
  const int units = GetParam().units;
  expect_equal(staged_step(GetParam().name, {units / 2}), whole);
  std::vector<int> everywhere;
  for (int cut = 1; cut < units; ++cut) everywhere.push_back(cut);
  expect_equal(staged_step(GetParam().name, everywhere), whole);
}

TEST_P(NetworkChain, KeepsTheRulesOfUnits) {
  const auto model = seeded_network(GetParam().name);
  const auto outputs = probe(Chain::of(model->parts()).value(), some_images());
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  EXPECT_EQ(outputs->back().shape, (std::vector<std::int64_t>{3, 10}));
  EXPECT_EQ(outputs->at(outputs->size() - 2).shape.size(), 2U) << "the mean belongs to the unit before the head";
}

INSTANTIATE_TEST_SUITE_P(Networks, NetworkChain,
                         ::testing::Values(NetworkUnits{"vgg16", 14}, NetworkUnits{"resnet18", 10},
                                           NetworkUnits{"mobilenet_v2", 20}, NetworkUnits{"shufflenet_v2_x1", 19},
                                           NetworkUnits{"densenet121", 64}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Chain, StagesHoldOnlyTheirModules) {
  std::vector<std::weak_ptr<nn::Module>> of_other_stage;
  std::shared_ptr<Unit> stage;
  {
    const auto model = seeded_network("resnet18");
    const Chain chain = Chain::of(model->parts()).value();
    for (int i = 5; i < 10; ++i) of_other_stage.push_back(chain.units()[static_cast<std::size_t>(i)].modules.front().second);
    stage = chain.stage(0, 5).value();
    EXPECT_FALSE(of_other_stage.front().expired());
  }
  for (const auto& module : of_other_stage) EXPECT_TRUE(module.expired());
  EXPECT_EQ(stage->forward(some_images()).sizes(), (std::vector<std::int64_t>{3, 128, 16, 16}));
}

TEST(Chain, StageAnnouncesToTheNetworksListener) {
  const auto model = seeded_network("vgg11");
  const auto stage = Chain::of(model->parts())->stage(0, 2).value();
  int announced = 0;
  model->announce_to([&](const nn::Module&) { ++announced; });
  stage->forward(some_images());
  EXPECT_EQ(announced, 4);  // two convolutions, each with its normalisation
}

nn::Sequential small_sequential() {
  ::torch::manual_seed(kChainSeed);
  return nn::Sequential(nn::Flatten(), nn::Linear(12, 8), nn::ReLU(nn::ReLUOptions(true)), nn::BatchNorm1d(8), nn::Linear(8, 6),
                        nn::ReLU(), nn::Dropout(0.5));
}

TEST(Chain, SequentialJoinsModulesWithoutParameters) {
  nn::Sequential model = small_sequential();
  const Chain chain = Chain::of(model).value();
  EXPECT_EQ(chain.unit_names(), (std::vector<std::string>{"1", "3", "4"}));
  ASSERT_EQ(chain.units()[0].modules.size(), 3U);  // flatten, linear, ReLU in place
  EXPECT_EQ(chain.units()[0].parameters().front().first, "1.weight");
  EXPECT_EQ(chain.units()[1].buffers().front().first, "3.running_mean");
  const at::Tensor x = at::randn({5, 3, 4});
  ::torch::manual_seed(kChainSeed);
  const at::Tensor whole = model->forward(x);
  ::torch::manual_seed(kChainSeed);
  const at::Tensor first = chain.stage(0, 1).value()->forward(x);
  EXPECT_TRUE(at::equal(chain.stage(1, 3).value()->forward(first), whole));
}

TEST(Chain, ModesAndDtypesOfAStageReachItsModules) {
  nn::Sequential model = small_sequential();
  const auto stage = Chain::of(model)->stage(1, 3).value();
  stage->eval();
  stage->to(at::kDouble);
  EXPECT_TRUE(model->ptr(1)->is_training());
  EXPECT_FALSE(model->ptr(6)->is_training());
  EXPECT_EQ(model->ptr(1)->parameters().front().scalar_type(), at::kFloat);
  EXPECT_EQ(model->ptr(4)->parameters().front().scalar_type(), at::kDouble);
}

TEST(Chain, FindsUnitsAndNamesTheNearest) {
  const Chain chain = Chain::of(seeded_network("resnet18")->parts()).value();
  EXPECT_EQ(chain.find("blocks.2").value(), 3);
  const auto unknown = chain.find("blocs.2");
  EXPECT_EQ(unknown.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(unknown.status().message().find("'blocks.2'"), std::string::npos) << unknown.status().message();
}

TEST(Chain, RefusesStagesOutsideOfIt) {
  const Chain chain = Chain::of(small_sequential()).value();
  for (const auto& [begin, end] : {std::pair{-1, 2}, std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 4}}) {
    EXPECT_EQ(chain.stage(begin, end).status().code(), StatusCode::invalid_argument) << begin << " " << end;
  }
}

/// The message of an error, which must name all of `names`.
template <typename Value>
void expect_refused(const Result<Value>& result, const std::vector<std::string>& names) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::invalid_argument);
  for (const std::string& name : names) {
    EXPECT_NE(result.status().message().find(name), std::string::npos) << name << " is not in: " << result.status().message();
  }
}

TEST(Chain, RefusesPartsThatMakeNoChain) {
  const auto linear = [] { return nn::Linear(4, 4).ptr(); };
  const auto same = linear();
  expect_refused(Chain::of(std::vector<Part>{}), {"none of its 0 parts"});
  expect_refused(Chain::of(nn::Sequential(nn::ReLU())), {"none of its 1 parts"});
  expect_refused(Chain::of({make_part("", linear())}), {"part 0", "no name"});
  expect_refused(Chain::of({make_part("a", linear()), {"b", {}, nullptr}}), {"part 1", "'b'", "no function"});
  expect_refused(Chain::of({make_part("a..b", linear())}), {"'a..b'"});
  expect_refused(Chain::of({make_part("a", linear()), make_part("a", linear())}), {"both", "'a'"});
  expect_refused(Chain::of({make_part("a", linear()), make_part("a.b", linear())}), {"'a.b'", "inside of module 'a'"});
  expect_refused(Chain::of({make_part("embed", same), make_part("head", same)}),
                 {"'embed'", "'head'", "'embed.weight'", "'head.weight'"});
  EXPECT_TRUE(Chain::of({make_part("a", linear()), make_part("ab", linear())}).ok());
}

TEST(Chain, OneUnitMayUseAParameterTwice) {
  const auto same = nn::Linear(4, 4).ptr();
  Part twice = make_part("first", same);
  twice.modules.emplace_back("again", same);
  EXPECT_TRUE(Chain::of({twice}).ok());
}

TEST(Chain, SharedBufferIsNamed) {
  class SharesMean final : public Unit {
   public:
    explicit SharesMean(const at::Tensor& mean) {
      register_buffer("mean", mean);
      linear_ = register_module("linear", nn::Linear(4, 4));
    }
    at::Tensor forward(at::Tensor input) override { return linear_->forward(input); }

   private:
    nn::Linear linear_{nullptr};
  };
  const at::Tensor mean = at::zeros({4});
  const auto one = std::make_shared<SharesMean>(mean);
  const auto other = std::make_shared<SharesMean>(mean);
  expect_refused(Chain::of({make_part("a", one), make_part("b", other)}), {"buffer", "'a.mean'", "'b.mean'"});
}

/// A unit with a parameter that does `change` to its input first.
class Odd final : public Unit {
 public:
  explicit Odd(std::function<at::Tensor(at::Tensor)> change) : change_(std::move(change)) {}
  at::Tensor forward(at::Tensor input) override { return change_(linear_->forward(change_(input))); }

 private:
  const std::function<at::Tensor(at::Tensor)> change_;
  nn::Linear linear_ = register_module("linear", nn::Linear(4, 4));
};

TEST(Probe, NamesUnitThatBreaksARule) {
  const auto probed = [](const std::function<at::Tensor(at::Tensor)>& change) {
    const auto chain = Chain::of({make_part("good", nn::Linear(4, 4)), make_part("odd", std::make_shared<Odd>(change))});
    return probe(chain.value(), at::ones({2, 4}));
  };
  EXPECT_TRUE(probed([](const at::Tensor& x) { return x.relu(); }).ok());
  expect_refused(probed([](const at::Tensor& x) { return x.relu_(); }), {"'odd'", "in place"});
  expect_refused(probed([](const at::Tensor& x) { return x.view({-1}).mul_(2).view({2, 4}); }), {"'odd'", "in place"});
  expect_refused(probed([](const at::Tensor& x) { return x.view({3, 5}); }), {"'odd'", "forward", "[3, 5]"});
  expect_refused(probed([called = 0](const at::Tensor& x) mutable { return ++called % 2 == 0 ? at::Tensor() : x; }),
                 {"'odd'", "no tensor"});
}

TEST(Probe, NamesModuleWithSeveralOutputs) {
  const Chain chain = Chain::of(nn::Sequential(nn::Linear(4, 4), nn::LSTM(4, 4))).value();
  expect_refused(probe(chain, at::ones({2, 3, 4})), {"'1'"});
}

TEST(Probe, LeavesMicrobatchAndStateAlone) {
  nn::Sequential model = small_sequential();
  const Chain chain = Chain::of(model).value();
  const at::Tensor x = at::randn({5, 3, 4});
  const at::Tensor before = x.clone();
  const at::Tensor mean = chain.units()[1].buffers().front().second.clone();
  const at::Tensor generator = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const auto outputs = probe(chain, x);
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  EXPECT_EQ(outputs->front().shape, (std::vector<std::int64_t>{5, 8}));
  EXPECT_EQ(outputs->front().type, at::kFloat);
  EXPECT_TRUE(at::equal(x, before));
  EXPECT_TRUE(at::equal(chain.units()[1].buffers().front().second, mean));
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), generator));
  model->forward(x);  // which does change them
  EXPECT_FALSE(at::equal(chain.units()[1].buffers().front().second, mean));
  EXPECT_FALSE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), generator));
}

TEST(StateGuard, PutsBackGradientOfAParameterUsedTwice) {
  const auto same = nn::Linear(4, 4).ptr();
  Part twice = make_part("first", same);
  twice.modules.emplace_back("again", same);
  const Chain chain = Chain::of({twice}).value();
  const at::Tensor gradient = at::ones({4, 4});
  same->weight.mutable_grad() = gradient;
  {
    const StateGuard guard(chain, at::kCPU);
    EXPECT_FALSE(same->weight.grad().defined());
  }
  EXPECT_TRUE(same->weight.grad().is_same(gradient));
  EXPECT_FALSE(same->bias.grad().defined());
}

TEST(StateGuard, KeepsGraphOfTheCallerValid) {
  nn::Sequential model = small_sequential();
  const Chain chain = Chain::of(model).value();
  const at::Tensor output = model->forward(at::randn({5, 3, 4}));
  { const StateGuard guard(chain, at::kCPU); }
  output.sum().backward();  // would throw if the running statistics counted as changed
  EXPECT_TRUE(chain.units()[0].parameters().front().second.grad().defined());
}

}  // namespace
}  // namespace shoal::parallel
