// Random numbers of units with seeds of their own: the same for every partition and schedule.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/random/unit_seeds.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::Recompute;
using pipeline::ScheduleKind;

constexpr int kDropoutUnits = 8;
constexpr int kMicrobatches = 4;
constexpr std::uint64_t kSeed = 77;

at::Tensor generator_state() { return at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state(); }

/// Linear layers, each with a dropout.
nn::Sequential make_dropout_layers() {
  ::torch::manual_seed(3);
  nn::Sequential layers;
  for (int unit = 0; unit < kDropoutUnits; ++unit) {
    layers->push_back(nn::Linear(unit == 0 ? 6 : 8, unit == kDropoutUnits - 1 ? kClasses : 8));
    layers->push_back(nn::Tanh());
    layers->push_back(nn::Dropout(0.4));
  }
  return layers;
}

struct DropoutChain {
  nn::Sequential model = make_dropout_layers();
  Chain chain = *Chain::of(model);
};

at::Tensor inputs_of(int step) {
  ::torch::manual_seed(std::uint64_t{40} + static_cast<std::uint64_t>(step));
  return ::torch::randn({2 * kMicrobatches, 6});
}

/// One step in one process, in which every unit is seeded by hand.
std::vector<at::Tensor> step_by_hand(const DropoutChain& model, int step, std::int64_t replica) {
  const at::Tensor inputs = inputs_of(step);
  const at::Tensor targets = make_targets(2 * kMicrobatches, step);
  std::vector<at::Tensor> losses;
  for (int i = 0; i < kMicrobatches; ++i) {
    at::Tensor x = inputs.narrow(0, std::int64_t{2} * i, 2);
    for (int unit = 0; unit < kDropoutUnits; ++unit) {
      ::torch::manual_seed(unit_seed({.seed = kSeed, .step = step, .replica = replica, .microbatch = i}, unit));
      x = model.chain.units()[static_cast<std::size_t>(unit)].forward(x);
    }
    const at::Tensor loss = cross_entropy(x, targets.narrow(0, std::int64_t{2} * i, 2));
    losses.push_back(loss.detach());
    (loss / kMicrobatches).backward();
  }
  return losses;
}

/// Three steps with an optimizer, of which the first has the number 5.
void compare_with_seeds_by_hand(Communicator& communicator, const PipelineOptions& options, int chunks) {
  constexpr int kFirst = 5;
  DropoutChain model;
  DropoutChain alone;
  const int ranks = communicator.size();
  const int length = kDropoutUnits / (ranks * chunks);
  std::vector<std::shared_ptr<Unit>> stages;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int first = (chunk * ranks + communicator.rank()) * length;
    stages.push_back(*model.chain.stage(first, first + length));
  }
  PipelineModel pipeline(stages, communicator, options);
  ::torch::optim::SGD optimizer(pipeline.parameters(), 0.5);
  ::torch::optim::SGD alone_optimizer(alone.model->parameters(), 0.5);
  const std::string what = std::string(to_string(options.schedule)) + " on " + std::to_string(ranks);
  for (int step = kFirst; step < kFirst + 3; ++step) {
    optimizer.zero_grad();
    alone_optimizer.zero_grad();
    const std::vector<at::Tensor> wanted = step_by_hand(alone, step, options.replica);
    const at::Tensor inputs = inputs_of(step);
    const at::Tensor targets = make_targets(2 * kMicrobatches, step);
    const at::Tensor before = generator_state();
    check_all_equal(pipeline.step(inputs, targets, cross_entropy).outputs(), wanted, "loss of " + what);
    check_equal(generator_state(), before, "the generator");
    for (std::size_t i = 0; i < alone.model->parameters().size(); ++i) {
      const at::Tensor gradient = model.model->parameters()[i].grad();
      if (gradient.defined()) check_equal(gradient, alone.model->parameters()[i].grad(), "gradient of " + what);
    }
    check(!stages[0]->parameters().empty() && stages[0]->parameters()[0].grad().defined(), "gradients are there");
    optimizer.step();
    alone_optimizer.step();
  }
}

TEST(UnitSeeds, TrainingDoesNotDependOnPartitionOrSchedule) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [](Communicator& communicator) {
      for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::virtual_stages}) {
        for (const Recompute recompute : {Recompute::none, Recompute::all}) {
          compare_with_seeds_by_hand(communicator,
                                     {.schedule = kind,
                                      .microbatches = kMicrobatches,
                                      .recompute = recompute,
                                      .seed = kSeed,
                                      .replica = 1,
                                      .first_step = 5},
                                     kind == ScheduleKind::virtual_stages ? 2 : 1);
        }
      }
    });
  }
}

TEST(UnitSeeds, EveryNumberChangesTheSeed) {
  std::set<std::uint64_t> seeds;
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    for (const std::int64_t step : {0, 1, 2}) {
      for (const std::int64_t replica : {0, 1, 2}) {
        for (const std::int64_t microbatch : {0, 1, 2}) {
          for (const std::int64_t unit : {-1, 0, 1, 2}) seeds.insert(unit_seed({seed, step, replica, microbatch}, unit));
        }
      }
    }
  }
  EXPECT_EQ(seeds.size(), 3U * 3U * 3U * 3U * 4U);
}

TEST(UnitSeeds, InnermostCountsAndGeneratorComesBack) {
  run_ranks(1, [](Communicator&) {
    const at::Tensor before = generator_state();
    UnitSeeds::begin_unit(0);  // does nothing
    check_equal(generator_state(), before, "without UnitSeeds");
    const auto drawn = [](const MicrobatchSeed& of, std::int64_t unit) {
      ::torch::manual_seed(unit_seed(of, unit));
      return ::torch::rand({3});
    };
    const MicrobatchSeed outer_seed{.seed = 1};
    const MicrobatchSeed inner_seed{.seed = 2};
    const at::Tensor of_outer = drawn(outer_seed, 4);
    const at::Tensor of_inner = drawn(inner_seed, 4);
    const at::Tensor start = generator_state();
    {
      const UnitSeeds outer(outer_seed, at::kCPU);
      UnitSeeds::begin_unit(4);
      {
        const UnitSeeds inner(inner_seed, at::kCPU);
        check(UnitSeeds::current()->seed == 2, "the innermost is current");
        UnitSeeds::begin_unit(4);
        check_equal(::torch::rand({3}), of_inner, "inner");
      }
      check_equal(::torch::rand({3}), of_outer, "outer goes on");
    }
    check(!UnitSeeds::current().has_value(), "none is left");
    check_equal(generator_state(), start, "the generator");
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
