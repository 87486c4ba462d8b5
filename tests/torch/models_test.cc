// The networks: sizes, shapes, gradients and announcements. model_values_test.py compares their values with a reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "bench/train/models/model.h"

namespace shoal::models {
namespace {

using Shape = std::vector<std::int64_t>;

/// Parameters for 3 channels and 10 classes.
const std::map<std::string, std::int64_t> kParameters{
    {"vgg11", 9'231'114},
    {"vgg13", 9'416'010},
    {"vgg16", 14'728'266},
    {"vgg19", 20'040'522},
    {"resnet18", 11'173'962},
    {"resnet34", 21'282'122},
    {"resnet50", 23'520'842},
    {"mobilenet_v2", 2'296'922},
    {"shufflenet_v2_x0.5", 352'042},
    {"shufflenet_v2_x1", 1'263'854},
    {"shufflenet_v2_x1.5", 2'488'874},
    {"shufflenet_v2_x2", 5'338'026},
    {"densenet121", 6'956'298},
};

class EveryModel : public ::testing::TestWithParam<ModelInfo> {};

TEST_P(EveryModel, ParameterCountIsRight) {
  const ModelSize size = measure(*GetParam().make(3, 10));
  EXPECT_EQ(size.parameters, kParameters.at(GetParam().name));
  EXPECT_EQ(size.bytes, 4 * size.parameters);
}

TEST_P(EveryModel, ModelTakesAllChannelsAndSizes) {
  const at::NoGradGuard no_grad;
  for (const int channels : {1, 3}) {
    const auto model = GetParam().make(channels, 7);
    model->eval();
    for (const int pixels : {28, 32}) {
      EXPECT_EQ(model->forward(at::zeros({2, channels, pixels, pixels})).sizes(), (Shape{2, 7}));
    }
  }
}

TEST_P(EveryModel, EveryParameterIsAnnouncedAndGetsGradient) {
  ::torch::manual_seed(3);
  const auto model = GetParam().make(1, 10);
  std::set<const c10::TensorImpl*> announced;
  model->announce_to([&](const ::torch::nn::Module& part) {
    EXPECT_NE(&part, model.get()) << "the model announces its parts, not itself";
    for (const at::Tensor& parameter : part.parameters()) announced.insert(parameter.unsafeGetTensorImpl());
  });
  model->forward(at::randn({2, 1, 28, 28})).square().sum().backward();
  for (const auto& named : model->named_parameters()) {
    EXPECT_TRUE(announced.contains(named.value().unsafeGetTensorImpl())) << named.key();
    EXPECT_TRUE(named.value().grad().defined()) << named.key();
  }
}

std::string test_name(const ::testing::TestParamInfo<ModelInfo>& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, ::testing::ValuesIn(all_models()), test_name);

TEST(Models, UnknownNameListsKnownModels) {
  const Result<ModelInfo> info = find_model("resnet19");
  EXPECT_EQ(info.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(info.status().message().find("densenet121"), std::string::npos);
}

}  // namespace
}  // namespace shoal::models
