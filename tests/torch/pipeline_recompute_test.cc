// Stages that run forward again in the backward, compared bit for bit with stages that keep their results; and their memory.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bench/train/models/model.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/profiler/allocation_meter.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::Recompute;
using pipeline::ScheduleKind;
using Stages = std::vector<std::shared_ptr<Unit>>;

/// Counts the forwards of a stage.
struct Counted {
  std::shared_ptr<Unit> stage;
  std::shared_ptr<int> forwards = std::make_shared<int>(0);

  explicit Counted(const std::shared_ptr<Unit>& unit, const HookedUnit::Hook& after = {}) {
    const auto count = [forwards = forwards](at::Tensor input) {
      ++*forwards;
      return input;
    };
    stage = std::make_shared<HookedUnit>(unit, count, after);
  }
};

/// Losses of two steps, then gradients, buffers, parameters and the state of the generator.
std::vector<at::Tensor> train(Communicator& communicator, const Stages& stages, const PipelineOptions& options,
                              const at::Tensor& images, const at::Tensor& targets) {
  ::torch::manual_seed(std::uint64_t{500} + static_cast<std::uint64_t>(communicator.rank()));
  PipelineModel model(stages, communicator, options);
  ::torch::optim::SGD optimizer(model.parameters(), 0.1);
  std::vector<at::Tensor> found;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const StepOutput losses = model.step(images, targets, cross_entropy);
    found.insert(found.end(), losses.outputs().begin(), losses.outputs().end());
    optimizer.step();
  }
  for (const std::shared_ptr<Unit>& stage : stages) {
    for (const at::Tensor& parameter : stage->parameters()) {
      found.push_back(parameter.grad().clone());
      found.push_back(parameter.detach().clone());
    }
    for (const at::Tensor& buffer : stage->buffers()) found.push_back(buffer.clone());
  }
  found.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
  return found;
}

at::Tensor drop(const at::Tensor& output) { return ::torch::dropout(output, 0.5, /*train=*/true); }

TEST(PipelineRecompute, HasBitsOfStagesThatKeepResults) {
  run_ranks(3, [](Communicator& communicator) {
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::virtual_stages}) {
      constexpr int kMicrobatches = 6;
      const int chunks = kind == ScheduleKind::virtual_stages ? 2 : 1;
      const at::Tensor images = make_images(2 * kMicrobatches + 1, 0);
      const at::Tensor targets = make_targets(2 * kMicrobatches + 1, 0);
      std::vector<std::vector<at::Tensor>> results;
      std::vector<int> forwards;
      for (const Recompute recompute : {Recompute::none, Recompute::all}) {
        Stages stages;
        std::vector<Counted> counted;
        for (const auto& stage : make_chunks(communicator.rank(), 3, chunks)) {
          counted.emplace_back(stage, drop);
          stages.push_back(counted.back().stage);
        }
        const PipelineOptions options{.schedule = kind, .microbatches = kMicrobatches, .recompute = recompute};
        results.push_back(train(communicator, stages, options, images, targets));
        forwards.push_back(*counted.back().forwards);
      }
      check_all_equal(results[1], results[0], std::string(to_string(kind)));
      const bool holds_one = kind != ScheduleKind::simple && communicator.rank() == 2;  // the last stage
      check(forwards[0] == 2 * kMicrobatches, "a forward for each microbatch");
      check(forwards[1] == (holds_one ? 1 : 2) * forwards[0], "another one where several microbatches are held");
    }
  });
}

TEST(PipelineRecompute, NetworkHasSameBits) {
  run_ranks(2, [](Communicator& communicator) {
    std::vector<std::vector<at::Tensor>> results;
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      ::torch::manual_seed(7);
      const Chain chain = *Chain::of(models::find_model("shufflenet_v2_x1")->make(3, 3)->parts());
      const int cut = chain.size() / 2;
      const Stages stages{*(communicator.rank() == 0 ? chain.stage(0, cut) : chain.stage(cut, chain.size()))};
      ::torch::manual_seed(8);
      const at::Tensor images = ::torch::randn({6, 3, 32, 32});
      const PipelineOptions options{.schedule = ScheduleKind::simple, .microbatches = 3, .recompute = recompute};
      results.push_back(train(communicator, stages, options, images, make_targets(6, 0)));
    }
    check_all_equal(results[1], results[0], "network");
  });
}

TEST(PipelineRecompute, OnlyChosenStagesRunTwice) {
  run_ranks(2, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const Counted counted(make_stage(rank, 2));
    const PipelineOptions options{.schedule = ScheduleKind::simple,
                                  .microbatches = 4,
                                  .recompute = Recompute::where_needed,
                                  .recompute_stages = {false, true}};
    PipelineModel model(counted.stage, communicator, options);
    OneProcess alone(2);
    const auto losses = model.step(make_images(8, 0), make_targets(8, 0), cross_entropy);
    check_all_equal(losses.outputs(), alone.step(make_images(8, 0), make_targets(8, 0), 4, cross_entropy), "loss");
    check(*counted.forwards == (rank == 1 ? 8 : 4), "stage 1 runs twice");
    (void)model.evaluate(make_images(8, 0));
    check(*counted.forwards == (rank == 1 ? 12 : 8), "evaluation runs once");
    const Stages trained{std::dynamic_pointer_cast<HookedUnit>(counted.stage)->inner};
    check_stages(trained, alone, rank, 2);
  });
}

/// Convolutions whose results need much more memory than the input.
std::shared_ptr<Unit> make_wide_stage(int stage) {
  struct WideUnit final : Unit {
    explicit WideUnit(bool last) : is_last(last) {
      for (int i = 0; i < 6; ++i) {
        const auto options = nn::Conv2dOptions(i == 0 ? 3 : 16, i == 5 ? 3 : 16, 3).padding(1);
        layers.push_back(register_module("conv" + std::to_string(i), nn::Conv2d(options)));
      }
    }
    at::Tensor forward(at::Tensor x) override {
      for (nn::Conv2d& layer : layers) x = layer->forward(x).tanh();
      return is_last ? x.mean({2, 3}) : x;
    }
    const bool is_last;
    std::vector<nn::Conv2d> layers;
  };
  ::torch::manual_seed(static_cast<std::uint64_t>(stage));
  return std::make_shared<WideUnit>(stage == 1);
}

TEST(PipelineRecompute, NeedsLessMemory) {
  run_ranks(2, [](Communicator& communicator) {
    std::vector<std::int64_t> peaks;
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      const at::Tensor images = ::torch::ones({16, 3, 16, 16});
      const at::Tensor targets = make_targets(16, 0);
      const AllocationMeter meter(at::kCPU);
      PipelineModel model(make_wide_stage(communicator.rank()), communicator,
                          {.schedule = ScheduleKind::simple, .microbatches = 8, .recompute = recompute});
      model.step(images, targets, cross_entropy);
      peaks.push_back(meter.peak());
    }
    // 8 microbatches of 2 images: each keeps 6 results of up to 32 KiB an image, or an input of 3 KiB an image.
    check(peaks[0] > 8 * 2 * 5 * 16 * 256 * 4, "without recomputation all results are kept: " + std::to_string(peaks[0]));
    check(3 * peaks[1] < peaks[0], "with recomputation those of one microbatch: " + std::to_string(peaks[1]));
  });
}

TEST(PipelineRecompute, BadStagesAreRefused) {
  run_ranks(2, [](Communicator& communicator) {
    const auto refused = [&](const PipelineOptions& options, const std::vector<std::string>& facts) {
      check_throws<c10::ValueError>(
          [&] { const PipelineModel model(make_stage(communicator.rank(), 2), communicator, options); }, facts);
      check(communicator.barrier().ok(), "the communicator is open");
    };
    refused({.recompute = Recompute::where_needed, .recompute_stages = {true}}, {"recompute_stages", "1", "2"});
    const int rank = communicator.rank();
    refused({.recompute = rank == 0 ? Recompute::none : Recompute::all}, {"recompute", "none on rank 0", "all on rank 1"});
    refused({.recompute = Recompute::where_needed, .recompute_stages = {true, rank == 0}}, {"recompute_stages", "rank 1"});
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
