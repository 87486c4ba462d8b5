// The pipeline runtime, compared bit for bit with one process; and its failures.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include "src/pipeline/shape.h"
#include "tests/torch/pipeline_ranks.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::ScheduleKind;
using std::chrono_literals::operator""ms;

constexpr int kSteps = 3;

/// Three steps with an optimizer, of which the second has uneven microbatches and the last fewer images than microbatches; then
/// an evaluation.
void train_and_compare(Communicator& communicator, const PipelineOptions& options, int chunks) {
  const int rank = communicator.rank();
  const int ranks = communicator.size();
  const int m = options.microbatches;
  const auto stages = make_chunks(rank, ranks, chunks);
  PipelineModel model(stages, communicator, options);
  OneProcess alone(ranks * chunks);
  std::vector<at::Tensor> all;
  for (const auto& unit : alone.units) {
    for (const at::Tensor& parameter : unit->parameters()) all.push_back(parameter);
  }
  ::torch::optim::SGD optimizer(model.parameters(), 0.1);
  ::torch::optim::SGD alone_optimizer(all, 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t batch = step == 0 ? 2 * m : step == 1 ? 2 * m + 1 : std::max(1, m - 1);
    const at::Tensor images = make_images(batch, step);
    const at::Tensor targets = make_targets(batch, step);
    optimizer.zero_grad();
    alone_optimizer.zero_grad();
    const StepOutput losses = rank == 0 ? model.step(images, targets, cross_entropy) : model.step({}, {}, cross_entropy);
    check_all_equal(losses.outputs(), alone.step(images, targets, m, cross_entropy), "loss");
    check(losses.images() == OneProcess::sizes(batch, m), "sizes of microbatches");
    check_stages(stages, alone, rank, ranks);
    optimizer.step();
    alone_optimizer.step();
  }
  const at::Tensor images = make_images(m + 1, kSteps);
  const StepOutput outputs = model.evaluate(rank == 0 ? images : at::Tensor());
  check_all_equal(outputs.outputs(), alone.evaluate(images, m), "output");
  check_stages(stages, alone, rank, ranks);  // evaluation changes no buffer
}

TEST(Pipeline, EveryScheduleHasBitsOfOneProcess) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    run_ranks(ranks, [](Communicator& communicator) {
      for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                      ScheduleKind::interleaved, ScheduleKind::virtual_stages}) {
        for (const int m : {1, 2, 3, 8}) {
          const bool is_virtual = kind == ScheduleKind::virtual_stages;
          if (is_virtual && m % communicator.size() != 0) continue;  // refused, see below
          train_and_compare(communicator, {.schedule = kind, .microbatches = m}, is_virtual ? 2 : 1);
        }
      }
    });
  }
}

TEST(Pipeline, InterleavedTakesCapAndTimes) {
  run_ranks(3, [](Communicator& communicator) {
    PipelineOptions options{.schedule = ScheduleKind::interleaved, .microbatches = 6, .active_microbatches = 2};
    options.stage_times = pipeline::equal_stages(3, 1, 2, 0.5);
    options.stage_times.stages[1].weight_ps *= 5;
    train_and_compare(communicator, options, 1);
  });
}

TEST(Pipeline, SumLossesCountOnceEach) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stages = make_chunks(communicator.rank(), 2);
    PipelineModel model(stages, communicator, {.microbatches = 3, .loss_reduction = LossReduction::sum});
    OneProcess alone(2);
    const Loss loss = [](const at::Tensor& output, const at::Tensor& target) {
      check(!target.defined(), "a step without targets passes none");
      return output.square().sum();
    };
    const at::Tensor images = make_images(7, 0);
    const StepOutput losses = model.step(images, {}, loss);
    check_all_equal(losses.outputs(), alone.step(images, {}, 3, loss, false), "loss");
    check_stages(stages, alone, communicator.rank(), 2);
  });
}

TEST(Pipeline, ChannelsLastCrossesCuts) {
  run_ranks(2, [](Communicator& communicator) {
    std::vector<bool> formats;
    const auto stages = make_chunks(communicator.rank(), 2);
    const auto record = [&](at::Tensor input) {
      formats.push_back(input.is_contiguous(at::MemoryFormat::ChannelsLast));
      return input;
    };
    PipelineModel model(std::make_shared<HookedUnit>(stages[0], record), communicator, {.microbatches = 2});
    OneProcess alone(2);
    const at::Tensor images = make_images(4, 0).contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor targets = make_targets(4, 0);
    const StepOutput losses = model.step(images, targets, cross_entropy);
    check(formats == std::vector<bool>{true, true}, "the input is channels last on both ranks");
    check_all_equal(losses.outputs(), alone.step(images, targets, 2, cross_entropy), "loss");
    check_stages(stages, alone, communicator.rank(), 2);
  });
}

TEST(Pipeline, FrozenFirstStageRunsWithoutGraph) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stages = make_chunks(communicator.rank(), 2);
    OneProcess alone(2);
    for (at::Tensor& parameter : alone.units[0]->parameters()) parameter.set_requires_grad(false);
    if (communicator.rank() == 0) {
      for (at::Tensor& parameter : stages[0]->parameters()) parameter.set_requires_grad(false);
    }
    PipelineModel model(stages, communicator, {.microbatches = 3});
    const at::Tensor images = make_images(5, 0);
    const at::Tensor targets = make_targets(5, 0);
    model.step(images, targets, cross_entropy);
    alone.step(images, targets, 3, cross_entropy);
    if (communicator.rank() == 1) check_stages(stages, alone, 1, 2);
    if (communicator.rank() == 0) check(!stages[0]->parameters()[0].grad().defined(), "a frozen parameter has no gradient");
  });
}

TEST(Pipeline, ImagesOfAnotherShapeAreTaken) {
  run_ranks(3, [](Communicator& communicator) {
    const auto stages = make_chunks(communicator.rank(), 3);
    PipelineModel model(stages, communicator, {.microbatches = 2});
    OneProcess alone(3);
    for (const std::int64_t edge : {5, 7, 5}) {
      const at::Tensor images = make_images(3, 0).narrow(3, 0, 3).repeat({1, 1, 1, edge});
      const at::Tensor targets = make_targets(3, 0);
      const StepOutput losses = model.step(images, targets, cross_entropy);
      check_all_equal(losses.outputs(), alone.step(images, targets, 2, cross_entropy), "loss");
    }
    check_stages(stages, alone, communicator.rank(), 3);
  });
}

TEST(Pipeline, HeldMicrobatchesAreThoseOfShape) {
  run_ranks(3, [](Communicator& communicator) {
    for (const ScheduleKind kind : {ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b}) {
      constexpr int kMicrobatches = 8;
      std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> inputs;
      long most = 0;
      const auto record = [&](at::Tensor input) {
        inputs.emplace_back(input.getIntrusivePtr());
        most = std::max(most, std::count_if(inputs.begin(), inputs.end(), [](const auto& held) { return !held.expired(); }));
        return input;
      };
      const auto stage = make_stage(communicator.rank(), 3);
      PipelineModel model(std::make_shared<HookedUnit>(stage, record), communicator,
                          {.schedule = kind, .microbatches = kMicrobatches});
      model.step(make_images(kMicrobatches, 0), make_targets(kMicrobatches, 0), cross_entropy);
      const pipeline::Shape shape{kind, 3, 1, kMicrobatches, std::nullopt};
      const int wanted = pipeline::held_microbatches(shape)[static_cast<std::size_t>(communicator.rank())];
      check(most == wanted, "holds " + std::to_string(most) + " microbatches of " + std::to_string(wanted));
      most = std::count_if(inputs.begin(), inputs.end(), [](const auto& held) { return !held.expired(); });
      check(most == 0, "nothing is held after the step");
    }
  });
}

TEST(Pipeline, EvaluationKeepsModesAndGradients) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stages = make_chunks(communicator.rank(), 2);
    stages[0]->modules().back()->eval();  // frozen by the user, inside a stage that trains
    std::vector<bool> trained;
    const auto record = [&](at::Tensor input) {
      trained.push_back(stages[0]->is_training());
      check(!input.requires_grad() && !at::GradMode::is_enabled(), "evaluation has no gradients");
      return input;
    };
    PipelineModel model(std::make_shared<HookedUnit>(stages[0], record), communicator, {.microbatches = 2});
    const StepOutput outputs = model.evaluate(make_images(3, 0));
    check(trained == std::vector<bool>{false, false}, "units are in evaluation mode");
    check(stages[0]->is_training(), "the mode is back");
    check(!stages[0]->modules().back()->is_training(), "the frozen part is still in evaluation mode");
    check(outputs.concat().sizes() == at::IntArrayRef({3, kClasses}), "an output for each image");
    check(at::GradMode::is_enabled(), "gradients are enabled again");
  });
}

TEST(Pipeline, RankZeroEndsSteps) {
  run_ranks(3, [](Communicator& communicator) {
    PipelineModel model(make_chunks(communicator.rank(), 3), communicator, {.microbatches = 2});
    int steps = 0;
    if (communicator.rank() == 0) {
      for (; steps < 2; ++steps) model.step(make_images(4, steps), make_targets(4, steps), cross_entropy);
      model.end();
    } else {
      while (!model.step({}, {}, cross_entropy).ended()) ++steps;
    }
    check(steps == 2, "every rank has made two steps");
    check(!model.evaluate(make_images(2, 0)).ended(), "evaluation follows");
  });
}

TEST(StepOutputs, ReduceConcatAndStack) {
  run_ranks(1, [](Communicator&) {
    const StepOutput losses({at::scalar_tensor(1.0), at::scalar_tensor(4.0)}, {3, 1});
    check(losses.reduce_mean().item<double>() == 1.75, "the mean counts images");
    check(losses.reduce_sum().item<double>() == 5, "sum");
    check_equal(losses.concat(), ::torch::tensor({1.0F, 4.0F}), "scalars become a vector");
    check_equal(losses.stack(), ::torch::tensor({1.0F, 4.0F}), "stack");
    const StepOutput uneven({::torch::ones({2, 3}), ::torch::zeros({1, 3})}, {2, 1});
    check(uneven.concat().sizes() == at::IntArrayRef({3, 3}), "concat takes different numbers of images");
    check_throws<c10::ValueError>([&] { static_cast<void>(uneven.stack()); }, {"microbatch 1", "concat"});
    check_throws<c10::ValueError>([&] { static_cast<void>(StepOutput().concat()); }, {"ended"});
    check(StepOutput().ended() && !uneven.ended(), "ended");
  });
}

/// Options for failures: a pipeline of 3 ranks whose deadline is far away, so that errors come from their causes.
PipelineOptions six_microbatches() {
  return {.schedule = ScheduleKind::one_f_one_b, .microbatches = 6, .timeout = std::chrono::minutes(30)};
}

/// Every rank fails with a StepError that names `facts`, long before the deadline: run_ranks() waits for a tenth of it. Later
/// calls fail as well.
void expect_failure(const std::function<std::shared_ptr<Unit>(int rank)>& make, const Loss& loss,
                    const std::vector<std::string>& facts, const PipelineOptions& options = six_microbatches()) {
  run_ranks(3, [&](Communicator& communicator) {
    PipelineModel model(make(communicator.rank()), communicator, options);
    const auto step = [&] { model.step(make_images(6, 0), make_targets(6, 0), loss); };
    std::vector<std::string> wanted = facts;
    wanted.push_back("rank " + std::to_string(communicator.rank()));
    check_throws<StepError>(step, wanted);
    check(!communicator.status().ok(), "the communicator is closed");
    check_throws<c10::ValueError>(step, facts);
  });
}

/// A function for HookedUnit that does `what` at its call number `at`, from 0.
HookedUnit::Hook at_call(int at, HookedUnit::Hook what) {
  return [at, what = std::move(what), calls = 0](const at::Tensor& tensor) mutable {
    return calls++ == at ? what(tensor) : tensor;
  };
}
/// A maker of stages of which `rank` has the hooks.
std::function<std::shared_ptr<Unit>(int)> hooked(int hooked_rank, const HookedUnit::Hook& before,
                                                 const HookedUnit::Hook& after = {}) {
  return [=](int rank) -> std::shared_ptr<Unit> {
    auto stage = make_stage(rank, 3);
    if (rank != hooked_rank) return stage;
    return std::make_shared<HookedUnit>(std::move(stage), before, after);
  };
}
at::Tensor throws_boom(const at::Tensor& /*tensor*/) { throw std::runtime_error("boom"); }

TEST(PipelineFailures, ThrowingForwardIsNamedOnAllRanks) {
  for (int rank = 0; rank < 3; ++rank) {
    const std::string name = std::to_string(rank);
    expect_failure(hooked(rank, at_call(3, throws_boom)), cross_entropy,
                   {"rank " + name, "stage " + name, "microbatch 3", "forward", "boom"});
  }
}

TEST(PipelineFailures, ThrowingBackwardIsNamedOnAllRanks) {
  const auto throws_in_backward = at_call(2, [](at::Tensor output) {
    output.register_hook([](const at::Tensor& gradient) { return throws_boom(gradient); });
    return output;
  });
  expect_failure(hooked(1, {}, throws_in_backward), cross_entropy, {"rank 1", "stage 1", "microbatch 2", "backward", "boom"});
}

struct WithUnused final : Unit {
  explicit WithUnused(std::shared_ptr<Unit> unit) : inner(register_module("inner", std::move(unit))) {
    register_parameter("unused", ::torch::zeros({3}));
  }
  at::Tensor forward(at::Tensor input) override { return inner->forward(std::move(input)); }
  std::shared_ptr<Unit> inner;
};

TEST(PipelineFailures, ParameterWithoutGradientEndsFirstStep) {
  PipelineOptions recomputing = six_microbatches();
  recomputing.recompute = pipeline::Recompute::all;
  PipelineOptions in_turn = six_microbatches();
  in_turn.schedule = ScheduleKind::simple;
  for (const auto& [rank, options] : {std::pair(0, six_microbatches()), std::pair(2, in_turn), std::pair(1, recomputing)}) {
    const auto make = [owner = rank](int each) -> std::shared_ptr<Unit> {
      if (each != owner) return make_stage(each, 3);
      return std::make_shared<WithUnused>(make_stage(each, 3));
    };
    const std::string name = std::to_string(rank);
    expect_failure(make, cross_entropy, {"rank " + name, "stage " + name, "microbatch 5", "backward", "unused"}, options);
  }
}

TEST(PipelineFailures, BadLossIsNamedOnAllRanks) {
  const std::vector<std::string> place{"rank 2", "stage 2", "microbatch 0", "loss"};
  const auto with = [&](const std::string& fact) {
    std::vector<std::string> facts = place;
    facts.push_back(fact);
    return facts;
  };
  const auto stages = [](int rank) { return make_stage(rank, 3); };
  expect_failure(
      stages, [](const at::Tensor& output, const at::Tensor&) { return output.sum() * NAN; }, with("finite"));
  expect_failure(
      stages, [](const at::Tensor& output, const at::Tensor&) { return output; }, with("number"));
  expect_failure(
      stages, [](const at::Tensor& output, const at::Tensor&) { return output.sum().detach(); }, with("depend"));
  expect_failure(
      stages, [](const at::Tensor&, const at::Tensor&) { return at::Tensor(); }, with("undefined"));
}

TEST(PipelineFailures, UnitsThatBreakRulesAreNamed) {
  const std::vector<std::string> place{"rank 1", "stage 1"};
  const auto with = [&](std::vector<std::string> facts) {
    facts.insert(facts.begin(), place.begin(), place.end());
    return facts;
  };
  const auto in_place = [](const at::Tensor& input) { return input.relu_(); };
  expect_failure(hooked(1, in_place), cross_entropy, with({"microbatch 0", "in-place"}));
  const auto first_image = [](const at::Tensor& output) { return output.narrow(0, 0, 1).squeeze(0); };
  expect_failure(hooked(1, {}, first_image), cross_entropy, with({"microbatch 0", "1 images"}));
  const auto detached = [](const at::Tensor& input) { return input.detach(); };
  expect_failure(hooked(1, detached), cross_entropy, with({"microbatch 0", "backward", "depend"}));
  const auto narrower = at_call(2, [](const at::Tensor& output) { return output.narrow(3, 0, 2); });
  expect_failure(hooked(1, {}, narrower), cross_entropy,
                 with({"microbatch 2", "sending the activation", "4, 5, 2", "4, 5, 5"}));
}

TEST(PipelineFailures, IntegersAtCutCannotTrain) {
  const auto integers = [](const at::Tensor& output) { return output.to(::torch::kLong); };
  expect_failure(hooked(0, {}, integers), cross_entropy, {"rank 1", "stage 1", "microbatch 0", "Long", "gradient"});
}

TEST(PipelineFailures, KilledRankEndsAllRanks) {
  for (const int victim : {0, 1, 2}) {
    const auto dies = [](const at::Tensor& input) -> at::Tensor {
      raise(SIGKILL);
      return input;
    };
    const auto make = hooked(victim, at_call(2, dies));
    run_ranks(
        3,
        [&](Communicator& communicator) {
          PipelineModel model(make(communicator.rank()), communicator, six_microbatches());
          try {
            model.step(make_images(6, 0), make_targets(6, 0), cross_entropy);
          } catch (const StepError& error) {
            const bool names = shoal::testing::mentions(error.what(), "rank " + std::to_string(communicator.rank()),
                                                        "rank " + std::to_string(victim));
            check(names, std::string("both ranks are named: ") + error.what());
            return check(error.cause().code() == StatusCode::peer_failed, "peer_failed: " + std::string(error.what()));
          }
          check(false, "a dead rank ends the step");
        },
        victim);
  }
}

TEST(PipelineFailures, RankThatLeavesEndsAllRanks) {
  for (const int leaver : {0, 2}) {
    run_ranks(3, [leaver](Communicator& communicator) {
      PipelineModel model(make_stage(communicator.rank(), 3), communicator, six_microbatches());
      if (communicator.rank() == leaver) return;
      const auto step = [&] { model.step(make_images(6, 0), make_targets(6, 0), cross_entropy); };
      const std::string rank = std::to_string(communicator.rank());
      check_throws<StepError>(step, {"rank " + rank + ", stage " + rank, "rank " + std::to_string(leaver)});
    });
  }
}

TEST(PipelineFailures, LateRankEndsAllRanksByDeadline) {
  run_ranks(3, [](Communicator& communicator) {
    PipelineOptions options = six_microbatches();
    options.timeout = 2000ms;
    const auto is_late = [&](const at::Tensor& input) {
      while (communicator.status().ok()) std::this_thread::sleep_for(10ms);  // until the other ranks have given up
      return input;
    };
    // The deadline counts from the rank that begins its step first. None begins before all ranks have made their model.
    const auto begin = std::chrono::steady_clock::now();
    PipelineModel model(hooked(1, at_call(2, is_late))(communicator.rank()), communicator, options);
    const auto step = [&] { model.step(make_images(6, 0), make_targets(6, 0), cross_entropy); };
    check_throws<StepError>(step, {"rank " + std::to_string(communicator.rank()), "rank 1", "timeout"});
    check(std::chrono::steady_clock::now() - begin >= options.timeout, "not before the deadline");
  });
}

TEST(PipelineFailures, AbsentRankEndsAllRanksByDeadline) {
  int ends[2];  // rank 1 says when it has given up
  ASSERT_EQ(pipe(ends), 0);
  run_ranks(2, [&](Communicator& communicator) {
    PipelineModel model(make_stage(communicator.rank(), 2), communicator, {.timeout = 2000ms});
    const auto step = [&] { model.step(make_images(2, 0), make_targets(2, 0), cross_entropy); };
    char byte = 0;
    if (communicator.rank() == 0) check(read(ends[0], &byte, 1) == 1, "rank 1 has given up");
    check_throws<StepError>(step, {"rank " + std::to_string(communicator.rank()), "rank 0", "timeout"});
    if (communicator.rank() == 1) check(write(ends[1], &byte, 1) == 1, "written");
  });
  close(ends[0]);
  close(ends[1]);
}

TEST(PipelineInputs, BadArgumentsOfRankZeroStartNothing) {
  run_ranks(2, [](Communicator& communicator) {
    const auto stages = make_chunks(communicator.rank(), 2);
    PipelineModel model(stages, communicator, {.microbatches = 2});
    const auto step = [&](const at::Tensor& images, const at::Tensor& targets) {
      return [&model, images, targets] { model.step(images, targets, cross_entropy); };
    };
    using Error = c10::ValueError;
    check_throws<Error>(step({}, make_targets(2, 0)), {"images", "undefined"});
    check_throws<Error>(step(make_images(2, 0).narrow(0, 0, 0), make_targets(0, 0)), {"batch", "0"});
    check_throws<Error>(step(make_images(3, 0), make_targets(2, 0)), {"2 targets", "3 images"});
    check_throws<Error>(step(at::scalar_tensor(1.0), make_targets(2, 0)), {"scalar"});
    check_throws<Error>([&] { model.evaluate(at::Tensor()); }, {"images", "undefined"});
    if (communicator.rank() == 0) {
      const at::NoGradGuard no_grad;
      check_throws<Error>(step(make_images(2, 0), make_targets(2, 0)), {"step", "gradients"});
    } else {
      check_throws<Error>(step({}, {}), {"step", "gradients"});
    }
    OneProcess alone(2);
    check_all_equal(model.step(make_images(2, 0), make_targets(2, 0), cross_entropy).outputs(),
                    alone.step(make_images(2, 0), make_targets(2, 0), 2, cross_entropy), "loss");
    check_stages(stages, alone, communicator.rank(), 2);
  });
}

TEST(PipelineInputs, BadCallsOfOtherRanksEndThePipeline) {
  const std::vector<std::pair<std::string, std::function<void(PipelineModel&)>>> calls{
      {"gradients",
       [](PipelineModel& model) {
         const at::NoGradGuard no_grad;
         model.step({}, {}, cross_entropy);
       }},
      {"loss", [](PipelineModel& model) { model.step({}, {}, {}); }},
      {"evaluate", [](PipelineModel& model) { model.evaluate({}); }},
  };
  for (const auto& bad : calls) {
    run_ranks(2, [&](Communicator& communicator) {
      PipelineModel model(make_stage(communicator.rank(), 2), communicator, {.microbatches = 2});
      // Rank 1 fails when rank 0 is no longer in the constructor.
      std::uint8_t token = 0;
      const Status met = communicator.rank() == 0 ? communicator.send(&token, 1, DataType::uint8, 1)
                                                  : communicator.recv(&token, 1, DataType::uint8, 0);
      check(met.ok(), "rank 0 has the model");
      const auto body = [&] {
        if (communicator.rank() == 1) return bad.second(model);
        model.step(make_images(2, 0), make_targets(2, 0), cross_entropy);
      };
      check_throws<StepError>(body, {"rank 1", "step", bad.first});
    });
  }
}

/// The constructor throws on all ranks of `communicator`, which stays open.
void check_refused(Communicator& communicator, const std::vector<std::shared_ptr<Unit>>& chunks, const PipelineOptions& options,
                   const std::vector<std::string>& facts) {
  check_throws<c10::ValueError>([&] { const PipelineModel model(chunks, communicator, options); }, facts);
  check(communicator.barrier().ok(), "the communicator is open");
}

TEST(PipelineInputs, WrongOptionsAreRefusedOnAllRanks) {
  run_ranks(2, [](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto one = make_chunks(rank, 2);
    const auto two = make_chunks(rank, 2, 2);
    check_refused(communicator, one, {.microbatches = 0}, {"microbatches", "0"});
    check_refused(communicator, one, {.schedule = ScheduleKind::zb_h1}, {"zb_h1", "simulated"});
    check_refused(communicator, one, {.schedule = ScheduleKind::forward_only}, {"forward_only", "evaluate"});
    check_refused(communicator, one, {.timeout = 0ms}, {"timeout", "0 ms"});
    check_refused(communicator, one, {.stage_times = pipeline::equal_stages(5, 1, 2, 0)}, {"5", "2"});
    check_refused(communicator, two, {.schedule = ScheduleKind::virtual_stages, .microbatches = 3}, {"virtual", "3", "2 or 4"});
    check_refused(communicator, two, {.schedule = ScheduleKind::simple}, {"2 chunks", "simple"});
    check_refused(communicator, {}, {}, {"no stage"});
    check_refused(communicator, {nullptr}, {}, {"chunk 0", "null"});
    check_refused(communicator, {one[0], one[0]}, {.schedule = ScheduleKind::virtual_stages, .microbatches = 2}, {"same"});
    // One rank alone is wrong, or the ranks differ.
    check_refused(communicator, one, {.microbatches = rank == 1 ? 0 : 2}, {"rank 1", "microbatches"});
    check_refused(communicator, one, {.microbatches = 2 + rank}, {"microbatches", "2 on rank 0", "3 on rank 1"});
    check_refused(communicator, one, {.batch_norm = static_cast<BatchNormStatistics>(rank)},
                  {"batch_norm", "microbatch on rank 0", "deferred on rank 1"});
    check_refused(communicator, one, {.seed = rank == 0 ? std::nullopt : std::optional<std::uint64_t>(7)},
                  {"seed", "none on rank 0", "7 on rank 1"});
    check_refused(communicator, one, {.schedule = rank == 0 ? ScheduleKind::simple : ScheduleKind::eager_1f1b},
                  {"schedule", "simple", "eager_1f1b"});
    const PipelineModel model(one, communicator, {.microbatches = 1});
    check(model.notes().size() == 1 && shoal::testing::mentions(model.notes()[0], "microbatches"), "a note about idle ranks");
  });
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
