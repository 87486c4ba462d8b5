// The norm of a gradient that is spread over two stages of two slices each, compared with one process.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/torch/forked_ranks.h"
#include "torch_plugin/parallel/gradients/gradient_norm.h"

namespace shoal::parallel {
namespace {

namespace nn = ::torch::nn;
using testing::run_torch_ranks;
using testing::TorchGroup;

constexpr double kMaxNorm = 0.5;

/// Two stages. The gradient of each element is a number of its own, so no part can stand for another.
struct TwoStages {
  TwoStages() {
    const at::NoGradGuard no_grad;
    double scale = 1;
    for (nn::Linear& layer : layers) {
      for (at::Tensor& parameter : layer->parameters()) {
        parameter.mutable_grad() = at::linspace(-1, 2, parameter.numel()).view(parameter.sizes()).mul(scale += 0.5);
      }
    }
  }
  std::vector<nn::Linear> layers{nn::Linear(5, 8), nn::Linear(8, 6)};
};

double norm_of_all(TwoStages& model) {
  double sum = 0;
  for (nn::Linear& layer : model.layers) {
    for (at::Tensor& parameter : layer->parameters()) sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum);
}

/// One rank's part of TwoStages: stage by outputs or by inputs, with the gradients of its slice.
struct NormShare {
  NormShare(const TorchGroup& tensor_group, int stage_index) : slices(tensor_group) {
    TwoStages model;
    stage = model.layers[static_cast<std::size_t>(stage_index)];
    const std::vector<at::Tensor> gradients{stage->weight.grad(), stage->bias.grad()};
    stage->weight.mutable_grad() = at::Tensor();
    stage->bias.mutable_grad() = at::Tensor();
    if (stage_index == 0) {
      slices.split_outputs(stage, "layer");
    } else {
      slices.split_inputs(stage, "layer");
    }
    stage->weight.mutable_grad() = gradients[0].chunk(2, stage_index)[slices.index()].clone();
    stage->bias.mutable_grad() = stage_index == 0 ? gradients[1].chunk(2, 0)[slices.index()].clone() : gradients[1].clone();
    module.register_module("layer", stage.ptr());
  }

  nn::Linear stage{nullptr};
  struct Holder : nn::Module {
    using nn::Module::register_module;
  } module;
  LayerSlices slices;
};

void require_norm(double found, double wanted) {
  if (std::abs(found - wanted) > 1e-12 * wanted) {
    throw std::runtime_error("the norm is " + std::to_string(found) + ", not " + std::to_string(wanted));
  }
}

/// Runs `body(part, groups)` on 4 ranks: 2 stages of 2 slices.
template <typename Body>
void run_parts(const Body& body) {
  run_torch_ranks(4, [&](const TorchGroup& all) {
    const int rank = all->getRank();
    const NormGroups groups{.tensor = testing::make_torch_subgroup(all, "tensor" + std::to_string(rank / 2), rank % 2, 2),
                            .pipeline = testing::make_torch_subgroup(all, "pipeline" + std::to_string(rank % 2), rank / 2, 2)};
    NormShare part(groups.tensor, rank / 2);
    body(part, groups);
  });
}

TEST(GradientNorm, SlicesAndWholeParametersCountOnce) {
  run_parts([](NormShare& part, const NormGroups& groups) {
    TwoStages model;
    require_norm(gradient_norm(part.module, part.slices.split(), groups), norm_of_all(model));
  });
}

TEST(GradientNorm, ClippedGradientsHaveTheGivenNorm) {
  run_parts([](NormShare& part, const NormGroups& groups) {
    TwoStages model;
    const double before = norm_of_all(model);
    const at::Tensor wanted = part.stage->weight.grad() * (kMaxNorm / before);
    require_norm(clip_gradient_norm(part.module, part.slices.split(), groups, kMaxNorm), before);
    if ((part.stage->weight.grad() - wanted).abs().max().item<double>() > 1e-7) throw std::runtime_error("another scale");
    const double after = gradient_norm(part.module, part.slices.split(), groups);
    if (std::abs(after - kMaxNorm) > 1e-6) throw std::runtime_error("the norm is " + std::to_string(after) + " now");
    const at::Tensor unchanged = part.stage->weight.grad().clone();
    clip_gradient_norm(part.module, part.slices.split(), groups, 1.0);
    if (!::torch::equal(part.stage->weight.grad(), unchanged)) throw std::runtime_error("a small gradient was scaled");
  });
}

// One element on one rank is not finite: all ranks know, and none scales.
TEST(GradientNorm, NonFiniteGradientIsKnownToAllRanks) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    run_parts([&](NormShare& part, const NormGroups& groups) {
      if (groups.pipeline->getRank() == 1 && part.slices.index() == 1) part.stage->weight.mutable_grad()[0][0] = value;
      const at::Tensor before = part.stage->bias.grad().clone();
      if (std::isfinite(clip_gradient_norm(part.module, part.slices.split(), groups, kMaxNorm))) {
        throw std::runtime_error("the norm is finite");
      }
      if (!::torch::equal(part.stage->bias.grad(), before)) throw std::runtime_error("a gradient was scaled");
    });
  }
}

TEST(GradientNorm, OneRankNeedsNoGroups) {
  at::set_num_threads(1);
  TwoStages model;
  nn::Sequential sequential(model.layers[0], model.layers[1]);
  EXPECT_NEAR(gradient_norm(*sequential, {}, {}), norm_of_all(model), 1e-9);
  EXPECT_THROW(clip_gradient_norm(*sequential, {}, {}, 0), c10::ValueError);
  EXPECT_THROW(clip_gradient_norm(*sequential, {}, {}, std::nan("")), c10::ValueError);
  sequential->zero_grad();
  EXPECT_EQ(gradient_norm(*sequential, {}, {}), 0);
}

}  // namespace
}  // namespace shoal::parallel
