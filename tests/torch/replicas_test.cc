// Pipelines whose stages have replicas, compared bit for bit with one process; and what they refuse.
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/pipeline/layout.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/gradients/gradient_norm.h"
#include "torch_plugin/parallel/replicas/replica_reduction.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::Axis;
using pipeline::Layout;
using pipeline::ScheduleKind;

constexpr int kReplicas = 2;

/// A rank of `kReplicas` pipelines.
struct ReplicaRank {
  ReplicaRank(Communicator& all, const std::string& placement, int partitions, PipelineOptions options, int chunk_count = 1,
              const HookedUnit::Hook& after_forward = {})
      : layout(*Layout::create(all.size(), partitions, 1, true, *pipeline::parse_placement(placement))),
        position(layout.position(all.rank())),
        chunks(hooked(make_chunks(position.stage, partitions, chunk_count), after_forward)),
        pipeline(*all.group(layout.group(all.rank(), Axis::pipeline))),
        reduction(std::make_shared<ReplicaReduction>(chunks, make_group(all, layout.group(all.rank(), Axis::replica)))),
        norms{.tensor = {}, .pipeline = make_group(all, layout.group(all.rank(), Axis::pipeline))},
        model(chunks, *pipeline, std::move(options), reduction) {}

  static std::vector<std::shared_ptr<Unit>> hooked(std::vector<std::shared_ptr<Unit>> chunks, const HookedUnit::Hook& after) {
    if (after) chunks[0] = std::make_shared<HookedUnit>(chunks[0], HookedUnit::Hook(), after);
    return chunks;
  }
  StepOutput step(const at::Tensor& images, const at::Tensor& targets) {
    reduction->clear_gradients();
    return position.stage == 0 ? model.step(images, targets, cross_entropy) : model.step({}, {}, cross_entropy);
  }

  Layout layout;
  pipeline::Position position;
  std::vector<std::shared_ptr<Unit>> chunks;
  std::unique_ptr<Communicator> pipeline;
  std::shared_ptr<ReplicaReduction> reduction;
  NormGroups norms;
  PipelineModel model;
};

/// One process that adds up each replica's microbatches apart, then halves of the sums: the order of a sum of two operands does
/// not matter, and halves are exact.
struct ReplicasAlone {
  explicit ReplicasAlone(int stages) : first(stages), second(stages) {}

  /// Afterwards both have the averages as gradients. Returns the losses of each replica.
  std::vector<std::vector<at::Tensor>> step(std::int64_t batch, int seed, int most) {
    std::vector<std::vector<at::Tensor>> losses;
    for (OneProcess* const replica : {&first, &second}) {
      for (const auto& unit : replica->units) unit->zero_grad();
      losses.push_back(replica->step(make_images(batch, seed), make_targets(batch, seed), most, cross_entropy));
      ++seed;
    }
    const at::NoGradGuard no_grad;
    for (std::size_t unit = 0; unit < first.units.size(); ++unit) {
      const std::vector<at::Tensor> of_first = first.units[unit]->parameters();
      const std::vector<at::Tensor> of_second = second.units[unit]->parameters();
      for (std::size_t i = 0; i < of_first.size(); ++i) {
        const at::Tensor average = of_first[i].grad() * 0.5 + of_second[i].grad() * 0.5;
        of_first[i].grad().copy_(average);
        of_second[i].grad().copy_(average);
      }
    }
    return losses;
  }
  std::vector<at::Tensor> parameters() {
    std::vector<at::Tensor> all;
    for (OneProcess* const replica : {&first, &second}) {
      for (const auto& unit : replica->units) {
        for (const at::Tensor& parameter : unit->parameters()) all.push_back(parameter);
      }
    }
    return all;
  }
  double norm() {
    double sum = 0;
    for (const auto& unit : first.units) {
      for (const at::Tensor& parameter : unit->parameters())
        sum += parameter.grad().to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(sum);
  }

  OneProcess first, second;
};

/// Four steps, since the reducer sorts its buckets in the second one.
void train_and_compare(Communicator& all, const std::string& placement, int partitions, const PipelineOptions& options,
                       int chunk_count) {
  ReplicaRank rank(all, placement, partitions, options, chunk_count);
  ReplicasAlone alone(partitions * chunk_count);
  ::torch::optim::SGD optimizer(rank.model.parameters(), 0.1);
  ::torch::optim::SGD alone_optimizer(alone.parameters(), 0.1);
  OneProcess& own = rank.position.replica == 0 ? alone.first : alone.second;
  for (int step = 0; step < 4; ++step) {
    const int seed = kReplicas * step;
    const std::int64_t batch = options.microbatches + step;
    const StepOutput losses =
        rank.step(make_images(batch, seed + rank.position.replica), make_targets(batch, seed + rank.position.replica));
    const auto wanted = alone.step(batch, seed, options.microbatches);
    check_all_equal(losses.outputs(), wanted[static_cast<std::size_t>(rank.position.replica)], "loss");
    check_stages(rank.chunks, own, rank.position.stage, partitions);
    optimizer.step();
    alone_optimizer.step();
  }
  rank.reduction->synchronize_buffers();
  for (std::size_t chunk = 0; chunk < rank.chunks.size(); ++chunk) {
    const auto& unit =
        alone.first.units[chunk * static_cast<std::size_t>(partitions) + static_cast<std::size_t>(rank.position.stage)];
    const auto buffers = rank.chunks[chunk]->named_buffers();
    for (const auto& each : unit->named_buffers())
      check_equal(buffers[each.key()], each.value(), "buffer of replica 0: " + each.key());
  }
}

TEST(Replicas, HaveBitsOfOneProcess) {
  run_ranks(4, [](Communicator& all) {
    train_and_compare(all, "cluster", 2, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 4}, 1);
    train_and_compare(all, "spread", 2, {.schedule = ScheduleKind::simple, .microbatches = 3}, 1);
    train_and_compare(all, "PDT", 2, {.schedule = ScheduleKind::virtual_stages, .microbatches = 4}, 2);
    train_and_compare(all, "DTP", 2, {.schedule = ScheduleKind::interleaved, .microbatches = 2}, 1);
  });
}

TEST(Replicas, RecomputationHasSameBits) {
  run_ranks(4, [](Communicator& all) {
    train_and_compare(all, "cluster", 2,
                      {.schedule = ScheduleKind::simple, .microbatches = 3, .recompute = pipeline::Recompute::all}, 1);
  });
}

TEST(Replicas, StagesReduceWhileOthersDrain) {
  // The loss of replica 1 waits until the gradient of replica 0 has reached stage 0. It never would if the backward of stage 1
  // of replica 0 waited for the average, which needs that loss.
  run_ranks(4, [](Communicator& all) {
    const Layout layout = *Layout::create(4, 2, 1, true, *pipeline::parse_placement("cluster"));
    const int sender = layout.rank({.replica = 0, .stage = 0});
    const int receiver = layout.rank({.replica = 1, .stage = 1});
    char token = 0;
    const auto tell = [&](const at::Tensor& output) {
      output.register_hook([&](const at::Tensor& gradient) {
        check(all.send(&token, 1, DataType::uint8, receiver, 0).ok(), "send");
        return gradient;
      });
      return output;
    };
    const auto hook = all.rank() == sender ? HookedUnit::Hook(tell) : HookedUnit::Hook();
    ReplicaRank rank(all, "cluster", 2, {.microbatches = 1, .timeout = std::chrono::seconds(30)}, 1, hook);
    const Loss loss = [&](const at::Tensor& output, const at::Tensor& target) {
      if (all.rank() == receiver) check(all.recv(&token, 1, DataType::uint8, sender, 0).ok(), "recv");
      return cross_entropy(output, target);
    };
    for (int step = 0; step < 3; ++step) {
      rank.reduction->clear_gradients();
      (void)rank.model.step(make_images(4, step), make_targets(4, step), loss);
    }
  });
}

struct Chunks : nn::Module {
  explicit Chunks(const std::vector<std::shared_ptr<Unit>>& chunks) { register_module("chunk", chunks.front()); }
};

TEST(Replicas, NormCountsEachParameterOnce) {
  run_ranks(4, [](Communicator& all) {
    ReplicaRank rank(all, "cluster", 2, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 2});
    ReplicasAlone alone(2);
    (void)rank.step(make_images(4, rank.position.replica), make_targets(4, rank.position.replica));
    (void)alone.step(4, 0, 2);
    const double wanted = alone.norm();
    const Chunks stage(rank.chunks);
    const double found = clip_gradient_norm(stage, {}, rank.norms, wanted / 2);
    check(std::abs(found - wanted) <= 1e-6 * wanted,
          "norm " + std::to_string(found) + ", of one process " + std::to_string(wanted));
    check(std::abs(gradient_norm(stage, {}, rank.norms) - wanted / 2) <= 1e-6 * wanted, "the gradients are scaled");
  });
}

TEST(Replicas, DifferentBatchesAreRefusedEverywhere) {
  run_ranks(4, [](Communicator& all) {
    ReplicaRank rank(all, "cluster", 2, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 2});
    const std::int64_t batch = 4 + 2 * rank.position.replica;
    // A rank of the last stage ends first, so it always compares; then it aborts its pipeline and the ranks of its stage.
    const std::vector<std::string> facts =
        rank.position.stage == 1 ? std::vector<std::string>{"4 images", "6"} : std::vector<std::string>{"rank"};
    check_throws<StepError>([&] { (void)rank.step(make_images(batch, 0), make_targets(batch, 0)); }, facts);
    check_throws<c10::ValueError>([&] { (void)rank.step(make_images(4, 0), make_targets(4, 0)); }, {"ended with an error"});
  });
}

/// Uses its parameter `unused` in some forwards only.
struct UnusedParameter final : Unit {
  explicit UnusedParameter(int uses) : uses_left(uses) { unused = register_parameter("unused", ::torch::zeros({kClasses})); }
  at::Tensor forward(at::Tensor input) override {
    const at::Tensor output = used->forward(input.flatten(1));
    return uses_left-- > 0 ? output + unused : output;
  }
  int uses_left;
  at::Tensor unused;
  nn::Linear used{register_module("used", nn::Linear(3 * kEdge * kEdge, kClasses))};
};

TEST(Replicas, ParameterWithoutGradientIsNamed) {
  const std::string all_bytes = std::to_string(4 * (kClasses * (3 * kEdge * kEdge) + 2 * kClasses));
  for (const int uses : {0, 1}) {  // in none of the microbatches, or not in the last one, which starts the reduction
    run_ranks(kReplicas, [&](Communicator& all) {
      const std::vector<std::shared_ptr<Unit>> chunks{std::make_shared<UnusedParameter>(uses)};
      const auto pipeline = *all.group(std::vector<int>{all.rank()});
      const auto reduction = std::make_shared<ReplicaReduction>(chunks, make_group(all, {0, 1}));
      PipelineModel model(chunks, *pipeline, {.microbatches = 2}, reduction);
      check_throws<StepError>([&] { (void)model.step(make_images(4, 0), make_targets(4, 0), cross_entropy); },
                              {uses == 0 ? "unused" : all_bytes});
    });
  }
}

TEST(Replicas, FailureEndsAllPipelines) {
  run_ranks(4, [](Communicator& all) {
    ReplicaRank rank(all, "cluster", 2, {.schedule = ScheduleKind::one_f_one_b, .microbatches = 2});
    const Loss loss = [&](const at::Tensor& output, const at::Tensor& target) {
      const at::Tensor value = cross_entropy(output, target);
      return rank.position.replica == 1 ? value * std::numeric_limits<double>::infinity() : value;
    };
    const bool loads = rank.position.stage == 0;
    check_throws<StepError>(
        [&] {
          (void)rank.model.step(loads ? make_images(4, 0) : at::Tensor(), loads ? make_targets(4, 0) : at::Tensor(), loss);
        },
        rank.position.replica == 1 ? std::vector<std::string>{"not finite"} : std::vector<std::string>{"aborted"});
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
