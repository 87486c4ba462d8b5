// Batch normalisation in a pipeline: statistics that are updated once for a step, and too few values.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/batch_norm/batch_norm_layers.h"
#include "torch_plugin/parallel/batch_norm/channel_moments.h"
#include "torch_plugin/parallel/batch_norm/deferred_statistics.h"
#include "torch_plugin/parallel/batch_norm/fewest_values.h"
#include "torch_plugin/parallel/chain/chain.h"
#include "torch_plugin/parallel/checkpoint/fingerprint.h"
#include "torch_plugin/parallel/replicas/replica_reduction.h"
#include "torch_plugin/parallel/runtime/few_values.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::Recompute;
using pipeline::ScheduleKind;

constexpr BatchNormStatistics kDeferred = BatchNormStatistics::deferred;

/// Fails where `found` is further from `wanted` than `most` of its largest value.
void check_near(const at::Tensor& found, const at::Tensor& wanted, double most, const std::string& what) {
  const double error = ((found - wanted).abs().max() / wanted.abs().max()).item<double>();
  check(error <= most, what + ", within " + std::to_string(1e9 * error) + "e-9");
}

ChannelMoments moments_of(const at::Tensor& values) {
  const at::Tensor mean = values.mean(0);
  return {values.size(0), mean, (values - mean).square().sum(0)};
}

TEST(ChannelMomentsOfParts, AreThoseOfTheWhole) {
  run_ranks(1, [](Communicator&) {
    ::torch::manual_seed(1);
    // A variance of 1e-4 at a mean of 100 is lost where squares are added up.
    const at::Tensor values = ::torch::randn({31, 5}, at::kDouble) * 0.01 + 100;
    ChannelMoments all;
    for (const at::Tensor& part : values.split_with_sizes({2, 9, 1, 19})) all.add(moments_of(part));
    all.add({});
    check(all.count == 31, "count");
    check_near(all.mean, values.mean(0), 1e-14, "mean");
    check_near(all.unbiased_variance(), values.var(0), 1e-10, "variance");
  });
}

/// The buffers of `layer` after one update with all of `inputs` as one batch.
std::vector<at::Tensor> updated_at_once(const nn::BatchNorm2d& layer, const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  nn::BatchNorm2d whole(layer->options);
  whole->running_mean.copy_(layer->running_mean);
  whole->running_var.copy_(layer->running_var);
  whole->num_batches_tracked.copy_(layer->num_batches_tracked);
  (void)whole->forward(at::cat(inputs));
  return {whole->running_mean, whole->running_var, whole->num_batches_tracked};
}

const nn::BatchNorm2d& norm_of(const Unit& stage) {
  if (const auto* head = dynamic_cast<const HeadUnit*>(&stage)) return head->block->norm;
  return dynamic_cast<const BlockUnit&>(stage).norm;
}
at::Tensor input_of_norm(const Unit& stage, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  if (const auto* head = dynamic_cast<const HeadUnit*>(&stage)) return nn::Conv2d(head->block->convolution)->forward(input);
  return nn::Conv2d(dynamic_cast<const BlockUnit&>(stage).convolution)->forward(input);
}

/// Two steps with uneven microbatches: gradients have the bits of one process, statistics are those of one batch.
void train_deferred(Communicator& communicator, const PipelineOptions& options) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  const auto stage = make_stage(rank, ranks);
  OneProcess alone(ranks);
  std::vector<at::Tensor> inputs;  // of the batch normalisation
  std::vector<at::Tensor> seen;    // kept, so that a second run has an address that is there already
  const auto record = [&](const at::Tensor& input) {
    const auto is_it = [&](const at::Tensor& other) { return other.data_ptr() == input.data_ptr(); };
    if (std::ranges::none_of(seen, is_it)) inputs.push_back(input_of_norm(*stage, input));
    seen.push_back(input);
    return input;
  };
  PipelineModel model(std::make_shared<HookedUnit>(stage, record), communicator, options);
  for (int step = 0; step < 2; ++step) {
    inputs.clear();
    seen.clear();
    for (const at::Tensor& parameter : stage->parameters()) parameter.mutable_grad().reset();
    for (const auto& unit : alone.units) unit->zero_grad();
    const nn::BatchNorm2d& norm = norm_of(*stage);
    nn::BatchNorm2d before(norm->options);
    {
      const at::NoGradGuard no_grad;
      before->running_mean.copy_(norm->running_mean);
      before->running_var.copy_(norm->running_var);
      before->num_batches_tracked.copy_(norm->num_batches_tracked);
    }
    const std::int64_t batch = 2 * options.microbatches + 1;
    model.step(make_images(batch, step), make_targets(batch, step), cross_entropy);
    alone.step(make_images(batch, step), make_targets(batch, step), options.microbatches, cross_entropy);
    const auto found = stage->named_parameters();
    for (const auto& wanted : alone.units[static_cast<std::size_t>(rank)]->named_parameters()) {
      check_equal(found[wanted.key()].grad(), wanted.value().grad(), "gradient of " + wanted.key());
    }
    check(static_cast<int>(inputs.size()) == options.microbatches, "each input once");
    const std::vector<at::Tensor> wanted = updated_at_once(before, inputs);
    check_near(norm->running_mean, wanted[0], 1e-6, "mean of the whole batch");
    check_near(norm->running_var, wanted[1], 1e-6, "unbiased variance of the whole batch");
    check(norm->num_batches_tracked.item<std::int64_t>() == step + 1, "one batch is counted for a step");
    const std::vector<at::Tensor> buffers = stage->buffers();
    const auto is_running_mean = [&](const at::Tensor& buffer) { return buffer.is_same(norm->running_mean); };
    check(std::ranges::any_of(buffers, is_running_mean), "the module uses its own buffer again");
  }
}

TEST(DeferredBatchNorm, UpdatesAsTheWholeBatch) {
  run_ranks(2, [](Communicator& communicator) {
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b}) {
      for (const Recompute recompute : {Recompute::none, Recompute::all}) {
        train_deferred(communicator, {.schedule = kind, .microbatches = 5, .batch_norm = kDeferred, .recompute = recompute});
      }
    }
  });
}

/// The statistics of all stages of a pipeline, each updated with a whole batch at once.
struct StatisticsAtOnce {
  explicit StatisticsAtOnce(int stages) : alone(stages) {
    for (const auto& unit : alone.units) norms.emplace_back(norm_of(*unit)->options);
  }
  void step(const at::Tensor& images, int microbatches) {
    const at::NoGradGuard no_grad;
    std::vector<std::vector<at::Tensor>> inputs(norms.size());
    std::int64_t begin = 0;
    for (const std::int64_t size : OneProcess::sizes(images.size(0), microbatches)) {
      at::Tensor x = images.narrow(0, begin, size);
      for (std::size_t stage = 0; stage < norms.size(); ++stage) {
        inputs[stage].push_back(input_of_norm(*alone.units[stage], x));
        x = alone.units[stage]->forward(x);  // normalizes by microbatch
      }
      begin += size;
    }
    for (std::size_t stage = 0; stage < norms.size(); ++stage) (void)norms[stage]->forward(at::cat(inputs[stage]));
  }
  OneProcess alone;
  std::vector<nn::BatchNorm2d> norms;
};

bool has_statistics(const nn::BatchNorm2d& norm, const nn::BatchNorm2d& wanted) {
  return ::torch::allclose(norm->running_mean, wanted->running_mean, 1e-5, 1e-6) &&
         ::torch::allclose(norm->running_var, wanted->running_var, 1e-5, 1e-6) &&
         ::torch::equal(norm->num_batches_tracked, wanted->num_batches_tracked);
}

TEST(DeferredBatchNorm, ReplicasHaveTheirOwnUntilSynchronized) {
  run_ranks(4, [](Communicator& all) {
    constexpr int kStages = 2;
    const int stage = all.rank() % kStages;
    const int replica = all.rank() / kStages;
    const std::vector<std::shared_ptr<Unit>> chunks{make_stage(stage, kStages)};
    const auto pipeline = *all.group(std::vector<int>{kStages * replica, kStages * replica + 1});
    const auto reduction = std::make_shared<ReplicaReduction>(chunks, make_group(all, {stage, kStages + stage}));
    PipelineModel model(chunks, *pipeline, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 3, .batch_norm = kDeferred},
                        reduction);
    std::vector<StatisticsAtOnce> wanted{StatisticsAtOnce(kStages), StatisticsAtOnce(kStages)};  // of each replica
    const auto wanted_of = [&](int each) {
      return wanted[static_cast<std::size_t>(each)].norms[static_cast<std::size_t>(stage)];
    };
    for (int step = 0; step < 2; ++step) {
      reduction->clear_gradients();
      const int seed = 2 * step + replica;
      (void)model.step(make_images(7, seed), make_targets(7, seed), cross_entropy);
      for (int each = 0; each < 2; ++each) wanted[static_cast<std::size_t>(each)].step(make_images(7, 2 * step + each), 3);
      check(has_statistics(norm_of(*chunks[0]), wanted_of(replica)), "statistics of the whole batch of this replica");
      check(!has_statistics(norm_of(*chunks[0]), wanted_of(1 - replica)), "and not those of the other replica");
    }
    reduction->synchronize_buffers();
    check(has_statistics(norm_of(*chunks[0]), wanted_of(0)), "statistics of replica 0");
    const std::uint64_t own = fingerprint_of(chunks[0]->buffers());
    std::vector<std::uint64_t> of_ranks(4);
    check(all.all_gather(&own, of_ranks.data(), 1, DataType::uint64).ok(), "fingerprints");
    check(of_ranks[0] == of_ranks[2] && of_ranks[1] == of_ranks[3] && of_ranks[0] != of_ranks[1], "the same bits");
    const StepOutput outputs = model.evaluate(make_images(4, 9));
    check(fingerprint_of(chunks[0]->buffers()) == own, "evaluation changes no statistics");
    const std::uint64_t scores = fingerprint_of(outputs.outputs());
    check(all.all_gather(&scores, of_ranks.data(), 1, DataType::uint64).ok(), "fingerprints");
    check(std::ranges::count(of_ranks, scores) == 4, "all replicas evaluate alike");
  });
}

/// A stage of one batch normalisation, for DeferredStatistics alone.
struct NormUnit final : Unit {
  explicit NormUnit(const nn::BatchNorm1dOptions& options) : norm(register_module("norm", nn::BatchNorm1d(options))) {}
  at::Tensor forward(at::Tensor input) override { return norm->forward(input); }
  nn::BatchNorm1d norm;
};

/// Runs `parts` as the microbatches of a step.
void defer(const std::shared_ptr<NormUnit>& unit, const std::vector<at::Tensor>& parts, bool commits = true) {
  DeferredStatistics statistics({unit});
  for (const at::Tensor& part : parts) {
    const BatchNormObserver observer([&](const BatchNormCall& call) { statistics.add(call); });
    (void)unit->forward(part);
  }
  if (commits) statistics.commit();
}

TEST(DeferredBatchNorm, LargeMeansKeepTheVariance) {
  run_ranks(1, [](Communicator&) {
    ::torch::manual_seed(2);
    const at::Tensor values = ::torch::randn({24, 3}) * 0.01 + 100;
    const auto unit = std::make_shared<NormUnit>(nn::BatchNorm1dOptions(3).momentum(1.0));
    defer(unit, values.split(6));
    check_near(unit->norm->running_var, values.to(at::kDouble).var(0), 1e-5, "variance of 1e-4 at a mean of 100");
  });
}

TEST(DeferredBatchNorm, CumulativeAverageCountsSteps) {
  run_ranks(1, [](Communicator&) {
    const auto unit = std::make_shared<NormUnit>(nn::BatchNorm1dOptions(2).momentum(std::nullopt));
    nn::BatchNorm1d whole(nn::BatchNorm1dOptions(2).momentum(std::nullopt));
    for (int step = 0; step < 3; ++step) {
      ::torch::manual_seed(static_cast<std::uint64_t>(step));
      const at::Tensor values = ::torch::randn({12, 2}) + step;
      defer(unit, values.split(4));
      (void)whole->forward(values);
      check_near(unit->norm->running_mean, whole->running_mean, 1e-6, "mean");
      check_near(unit->norm->running_var, whole->running_var, 1e-6, "variance");
    }
    check(!unit->norm->options.momentum().has_value(), "the momentum is back");
    check(unit->norm->num_batches_tracked.item<std::int64_t>() == 3, "steps");
  });
}

TEST(DeferredBatchNorm, FailedStepAndFrozenLayerLeaveNoTrace) {
  run_ranks(1, [](Communicator&) {
    const auto unit = std::make_shared<NormUnit>(nn::BatchNorm1dOptions(2));
    const at::Tensor values = ::torch::ones({4, 2}) * ::torch::arange(4).unsqueeze(1);
    defer(unit, {values}, /*commits=*/false);
    unit->eval();
    defer(unit, {values});
    check_equal(unit->norm->running_mean, ::torch::zeros({2}), "mean");
    check_equal(unit->norm->running_var, ::torch::ones({2}), "variance");
    check(unit->norm->num_batches_tracked.item<std::int64_t>() == 0, "batches");
    check(unit->norm->options.momentum() == 0.1, "momentum");
  });
}

/// Linear, BatchNorm1d, Linear: one value of each channel for each image.
std::shared_ptr<Unit> make_narrow_stage(int rank) {
  ::torch::manual_seed(4);
  const nn::Sequential model(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Linear(8, kClasses));
  const Chain chain = *Chain::of(model);
  return *(rank == 0 ? chain.stage(0, 2) : chain.stage(2, 3));
}

TEST(BatchNormValues, OneValueIsAnErrorThatSaysWhatToDo) {
  run_ranks(2, [](Communicator& communicator) {
    for (const BatchNormStatistics statistics : {BatchNormStatistics::microbatch, kDeferred}) {
      const auto all = communicator.group(std::vector<int>{0, 1});
      PipelineModel model(make_narrow_stage(communicator.rank()), **all, {.microbatches = 4, .batch_norm = statistics});
      check_throws<StepError>(
          [&] {
            model.step(::torch::ones({6, 6}), make_targets(6, 0), cross_entropy);
          },
          {"unit '1'", "stage 0", "microbatch 2", "1 image", "m at most 3"});
    }
    const auto all = communicator.group(std::vector<int>{0, 1});
    PipelineModel model(make_narrow_stage(communicator.rank()), **all, {.microbatches = 4});
    check_throws<StepError>(
        [&] {
          model.step(::torch::ones({1, 6}), make_targets(1, 0), cross_entropy);
        },
        {"unit '1'", "microbatch 0", "2 images"});
  });
}

TEST(BatchNormValues, AreKnownBeforeTheFirstStep) {
  run_ranks(1, [](Communicator&) {
    const nn::Sequential model(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::Conv2d(4, 4, 3), nn::BatchNorm2d(4));
    const Chain chain = *Chain::of(model);
    const auto of_edge = [&](std::int64_t edge) { return **fewest_values(chain, ::torch::zeros({2, 3, edge, edge})); };
    check(of_edge(6).unit == "3" && of_edge(6).for_each_image == 4, "the last layer has a map of 2 x 2");
    check(check_values(of_edge(6), {3, 3}).ok(), "an image is enough");
    check(check_values(of_edge(5), {6, 3}).ok(), "two images are enough");
    check_equal(model->named_buffers()["1.running_mean"], ::torch::zeros({4}), "statistics");
    const auto refused = [&](const Microbatches& microbatches, const std::vector<std::string>& facts) {
      const Status status = check_values(of_edge(5), microbatches);
      check(status.code() == StatusCode::invalid_argument && shoal::testing::mentions_all(status.message(), facts),
            "\"" + facts.back() + "\" and more in: " + status.message());
    };
    refused({7, 4}, {"unit '3'", "1 image", "m at most 3", "7 images"});
    refused({1, 4}, {"unit '3'", "1 image", "2 images"});
    const nn::Sequential plain(nn::Linear(2, 2));
    check(!fewest_values(*Chain::of(plain), ::torch::zeros({2, 2}))->has_value(), "there is none");
  });
}

/// Keeps the warnings of torch.
struct KeptWarnings final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(BatchNormValues, FewValuesAreWarnedOfOnce) {
  run_ranks(2, [](Communicator& communicator) {
    KeptWarnings kept;
    const c10::WarningUtils::WarningHandlerGuard guard(&kept);
    PipelineModel model(make_narrow_stage(communicator.rank()), communicator, {.microbatches = 4});
    const auto step = [&](std::int64_t batch) { model.step(::torch::rand({batch, 6}), make_targets(batch, 0), cross_entropy); };
    step(32);
    check(kept.texts.empty(), "8 values are enough");
    step(31);
    if (communicator.rank() == 1) return check(kept.texts.empty(), "there is no batch normalisation");
    check(kept.texts.size() == 1, "a warning");
    check(shoal::testing::mentions_all(kept.texts[0], {"stage 0", "'1'", "7 values", "7 images", "m at most 3"}),
          kept.texts[0]);
  });
  run_ranks(2, [](Communicator& communicator) {
    KeptWarnings kept;
    const c10::WarningUtils::WarningHandlerGuard guard(&kept);
    PipelineModel model(make_narrow_stage(communicator.rank()), communicator, {.microbatches = 2});
    for (const std::int64_t batch : {4, 6, 4}) model.step(::torch::rand({batch, 6}), make_targets(batch, 0), cross_entropy);
    check(kept.texts.size() == (communicator.rank() == 0 ? 1 : 0), "once");
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
