// Stages, and units inside of them, that run forward again in the backward, compared bit for bit with those that keep their
// results; and their memory.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/train/models/model.h"
#include "src/pipeline/layout.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/partition/partition_chain.h"
#include "torch_plugin/parallel/profiler/allocation_meter.h"
#include "torch_plugin/parallel/replicas/replica_reduction.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"

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

/// Gradients, parameters and buffers.
void add_state(const Stages& stages, std::vector<at::Tensor>& found) {
  for (const std::shared_ptr<Unit>& stage : stages) {
    for (const at::Tensor& parameter : stage->parameters()) {
      found.push_back(parameter.grad().clone());
      found.push_back(parameter.detach().clone());
    }
    for (const at::Tensor& buffer : stage->buffers()) found.push_back(buffer.clone());
  }
}

/// Losses of two steps, of an evaluation in between if `evaluates`, then gradients, parameters, buffers and the state of the
/// generator.
std::vector<at::Tensor> train(Communicator& communicator, const Stages& stages, const PipelineOptions& options,
                              const at::Tensor& images, const at::Tensor& targets, bool evaluates = false) {
  ::torch::manual_seed(std::uint64_t{500} + static_cast<std::uint64_t>(communicator.rank()));
  PipelineModel model(stages, communicator, options);
  ::torch::optim::SGD optimizer(model.parameters(), 0.1);
  std::vector<at::Tensor> found;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const StepOutput losses = model.step(images, targets, cross_entropy);
    found.insert(found.end(), losses.outputs().begin(), losses.outputs().end());
    optimizer.step();
    if (evaluates && step == 0) found.push_back(model.evaluate(images).concat());
  }
  add_state(stages, found);
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

// ---- units inside of stages ----

constexpr int kChainUnits = 8;

/// Two layers of which ranks may have slices, statistics and random numbers between them; the mean over the map at the end.
struct SlicedUnit final : Unit {
  SlicedUnit(std::int64_t inputs, LayerSlices layer_slices) : slices(std::move(layer_slices)) {
    widen = register_module("widen", nn::Conv2d(nn::Conv2dOptions(inputs, 2 * kChannels, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(2 * kChannels));
    narrow = register_module("narrow", nn::Conv2d(nn::Conv2dOptions(2 * kChannels, kChannels, 1)));
    slices.split_outputs(widen, "widen");
    slices.split_channels(norm, "norm");
    slices.split_inputs(narrow, "narrow");
  }
  at::Tensor forward(at::Tensor input) override {
    const at::Tensor hidden = norm(slices.by_outputs(widen, input)).relu();
    return ::torch::dropout(slices.by_inputs(narrow, hidden), 0.2, is_training());
  }
  nn::Conv2d widen{nullptr}, narrow{nullptr};
  nn::BatchNorm2d norm{nullptr};
  LayerSlices slices;
};

/// Eight units with the same values each time, which count their forwards.
struct CountedChain {
  explicit CountedChain(const LayerSlices::Group& sharing = {}) : chain(*Chain::of(parts(sharing))) {}

  std::vector<Part> parts(const LayerSlices::Group& sharing) {
    ::torch::manual_seed(77);
    std::vector<Part> made;
    for (int unit = 0; unit < kChainUnits; ++unit) {
      const auto module = std::make_shared<SlicedUnit>(unit == 0 ? 3 : kChannels, LayerSlices(sharing));
      const std::string name = "block." + std::to_string(unit);
      made.push_back({name, {{name, module}}, [this, unit, module](at::Tensor x) {
                        const int run = ++forwards[unit];
                        TORCH_CHECK(unit != throws_in || run <= throws_behind, "it throws");
                        x = module->forward(std::move(x));
                        return unit == kChainUnits - 1 ? x.narrow(1, 0, kClasses).mean({2, 3}) : x;
                      }});
    }
    return made;
  }

  /// The stages of `rank`; units recompute as the partitioner says for `list`.
  Stages stages(int rank, const pipeline::Shape& shape, const std::string& list) const {
    pipeline::Profile profile;
    for (const std::string& name : chain.unit_names()) profile.units.emplace_back().name = name;
    pipeline::PartitionRequest request;
    request.rules.shape = shape;
    request.rules.recompute_units = pipeline::parse_recompute_units(list).value();
    std::vector<int> cuts;
    for (int stage = 1; stage < shape.stages(); ++stage) cuts.push_back(stage * kChainUnits / shape.stages());
    return make_stages(chain, partition_at(profile, request, cuts).value(), rank, shape.ranks).value();
  }

  std::map<int, int> forwards;  // by unit
  int throws_in = -1;           // this unit does
  int throws_behind = 0;        // after so many forwards
  Chain chain;
};

TEST(PipelineRecomputeUnits, HaveBitsInAllSchedules) {
  const std::vector<std::pair<std::string, std::set<int>>> lists{
      {"none", {}},
      {"block.1,block.2,block.6", {1, 2, 6}},
      {"0..2,block.5..block.6", {0, 1, 2, 5, 6}},
      {"all", {0, 1, 2, 3, 4, 5, 6, 7}},
  };
  run_ranks(2, [&](Communicator& communicator) {
    constexpr int kMicrobatches = 4;
    const at::Tensor images = make_images(2 * kMicrobatches + 1, 0);
    const at::Tensor targets = make_targets(2 * kMicrobatches + 1, 0);
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                    ScheduleKind::interleaved, ScheduleKind::virtual_stages}) {
      const pipeline::Shape shape{kind, 2, kind == ScheduleKind::virtual_stages ? 2 : 1, kMicrobatches, {}};
      const bool is_deferred = kind == ScheduleKind::interleaved;  // and seeded
      PipelineOptions options{.schedule = kind, .microbatches = kMicrobatches};
      if (is_deferred) options.batch_norm = BatchNormStatistics::deferred;
      if (is_deferred) options.seed = 3;
      std::vector<at::Tensor> wanted;
      for (const auto& [list, recomputed] : lists) {
        CountedChain model;
        const Stages stages = model.stages(communicator.rank(), shape, list);
        const std::vector<at::Tensor> found = train(communicator, stages, options, images, targets, /*evaluates=*/true);
        if (list == "none") wanted = found;
        check_all_equal(found, wanted, std::string(to_string(kind)) + ", " + list);
        for (const auto& [unit, forwards] : model.forwards) {
          const int each_step = recomputed.contains(unit) ? 2 : 1;
          check(forwards == (2 * each_step + 1) * kMicrobatches, "forwards of unit " + std::to_string(unit) + " of " + list);
        }
        check(model.forwards.size() == kChainUnits / 2, "units of this rank");
      }
    }
  });
}

/// Three steps of two stages on four ranks, which are two replicas or share layers by twos.
std::vector<at::Tensor> train_on_four(Communicator& all, bool shares_layers, const std::string& list) {
  using pipeline::Axis;
  constexpr int kMicrobatches = 3;
  const auto placement = *pipeline::parse_placement("cluster");
  const auto layout = *pipeline::Layout::create(4, 2, shares_layers ? 2 : 1, !shares_layers, placement);
  const pipeline::Position position = layout.position(all.rank());
  const auto group_of = [&](Axis axis) { return make_group(all, layout.group(all.rank(), axis)); };
  const LayerSlices::Group sharing = shares_layers ? group_of(Axis::tensor) : LayerSlices::Group();
  CountedChain chain(sharing);
  const Stages stages = chain.stages(position.stage, {ScheduleKind::simple, 2, 1, kMicrobatches, {}}, list);
  const auto group = *all.group(layout.group(all.rank(), Axis::pipeline));
  const auto reduction = shares_layers ? nullptr : std::make_shared<ReplicaReduction>(stages, group_of(Axis::replica));
  PipelineModel model(stages, *group, {.schedule = ScheduleKind::simple, .microbatches = kMicrobatches, .seed = 5}, reduction);
  ::torch::optim::SGD optimizer(model.parameters(), 0.1);
  std::vector<at::Tensor> found;
  for (int step = 0; step < 3; ++step) {
    if (reduction) reduction->clear_gradients();
    if (!reduction) optimizer.zero_grad();
    const int seed = 2 * step + position.replica;
    const StepOutput losses = model.step(make_images(6, seed), make_targets(6, seed), cross_entropy);
    found.insert(found.end(), losses.outputs().begin(), losses.outputs().end());
    optimizer.step();
  }
  add_state(stages, found);
  return found;
}

TEST(PipelineRecomputeUnits, HaveBitsWithReplicasAndSlices) {
  for (const bool shares_layers : {false, true}) {
    run_ranks(4, [&](Communicator& all) {
      const std::vector<at::Tensor> wanted = train_on_four(all, shares_layers, "none");
      for (const char* const list : {"block.1,block.4..block.6", "all"}) {
        check_all_equal(train_on_four(all, shares_layers, list), wanted, shares_layers ? "slices" : "replicas");
      }
    });
  }
}

TEST(PipelineRecomputeUnits, FailureOfSecondRunNamesUnit) {
  run_ranks(2, [](Communicator& communicator) {
    CountedChain model;
    model.throws_in = 1;  // of rank 0
    model.throws_behind = 3;
    const pipeline::Shape shape{ScheduleKind::simple, 2, 1, 3, {}};
    PipelineModel pipeline(model.stages(communicator.rank(), shape, "0..2"), communicator,
                           {.schedule = ScheduleKind::simple, .microbatches = 3});
    check_throws<StepError>([&] { pipeline.step(make_images(6, 0), make_targets(6, 0), cross_entropy); },
                            {"rank 0, stage 0: backward of microbatch 0", "unit 'block.1'", "it throws"});
  });
}

TEST(PipelineRecomputeUnits, NeedLessMemory) {
  at::set_num_threads(1);
  CountedChain model;
  const auto kept_bytes = [&](const std::string& list) {
    const Stages stages = model.stages(0, {ScheduleKind::simple, 1, 1, 1, {}}, list);
    const at::Tensor images = ::torch::ones({16, 3, 32, 32});
    const AllocationMeter meter(at::kCPU);
    const at::Tensor output = stages[0]->forward(images);
    return meter.bytes();
  };
  constexpr std::int64_t kMap = 16 * kChannels * 32 * 32 * 4;
  const std::int64_t all = kept_bytes("none");
  EXPECT_GT(all,
            kChainUnits * 4 * kMap);  // of a unit: twice as many channels behind the convolution, the norm and the activation
  const std::int64_t apart = kept_bytes("all");
  EXPECT_GE(apart, (kChainUnits - 1) * kMap);
  EXPECT_LT(apart, (kChainUnits - 1) * kMap + kMap / 2);
  EXPECT_LT(kept_bytes("block.0..block.7"), kMap / 2);  // its input is there anyway
  EXPECT_LT(kept_bytes("block.0..block.6"), all / kChainUnits + kMap);
}

TEST(PipelineRecomputeUnits, RunsOutsideOfStageAreRefused) {
  CountedChain model;
  for (const std::vector<pipeline::UnitRun>& runs : std::initializer_list<std::vector<pipeline::UnitRun>>{
           {{3, 5}}, {{-1, 1}}, {{1, 1}}, {{2, 1}}, {{2, 3}, {1, 2}}, {{0, 2}, {1, 3}}}) {
    const Status status = model.chain.stage(0, 4, runs).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_TRUE(shoal::testing::mentions_all(status.message(), {"recompute", "0 to 3", "overlap"})) << status.message();
  }
  EXPECT_TRUE(model.chain.stage(0, 4, {{0, 1}, {1, 4}}).ok());
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
