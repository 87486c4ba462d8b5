// A rank of a pipeline is lost in every phase of a step, many times: killed, stopped, by exit(), by leaving, by an exception.
// All other ranks end in time with an error that names it.
//
// SHOAL_TEST_SEED=n runs one case, SHOAL_TEST_SEEDS=n or first:n other cases than the default. A failure prints its seed.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/seeds.h"
#include "tests/torch/pipeline_ranks.h"

namespace shoal::parallel::pipeline_testing {
namespace {

using pipeline::ScheduleKind;
using SteadyClock = std::chrono::steady_clock;

enum class End : std::uint8_t { killed, stopped, exits, leaves, throws };
enum class Phase : std::uint8_t { forward, backward, between_steps, evaluation };

struct Way {
  End end;
  Phase phase;
  const char* text;
};
constexpr std::array<Way, 16> kWays{{
    {End::killed, Phase::forward, "killed in a forward"},
    {End::stopped, Phase::backward, "stopped in a backward"},
    {End::leaves, Phase::between_steps, "leaves between steps"},
    {End::throws, Phase::evaluation, "throws in an evaluation"},
    {End::killed, Phase::evaluation, "killed in an evaluation"},
    {End::exits, Phase::backward, "exits in a backward"},
    {End::throws, Phase::forward, "throws in a forward"},
    {End::killed, Phase::between_steps, "killed between steps"},
    {End::killed, Phase::backward, "killed in a backward"},
    {End::exits, Phase::forward, "exits in a forward"},
    {End::stopped, Phase::forward, "stopped in a forward"},
    {End::exits, Phase::between_steps, "exits between steps"},
    {End::exits, Phase::evaluation, "exits in an evaluation"},
    {End::throws, Phase::backward, "throws in a backward"},
    {End::stopped, Phase::between_steps, "stopped between steps"},
    {End::stopped, Phase::evaluation, "stopped in an evaluation"},
}};

constexpr std::chrono::milliseconds kTimeout{2000};
constexpr std::chrono::milliseconds kSlack{10'000};  // other processes may have the cores

/// One case.
struct Case {
  static constexpr int kMicrobatches = 4;

  explicit Case(std::uint64_t seed) : way(kWays[seed % kWays.size()]) {
    std::mt19937_64 random(seed * 7919 + 1);
    const auto below = [&](int count) { return static_cast<int>(random() % static_cast<std::uint64_t>(count)); };
    constexpr std::array kKinds{ScheduleKind::simple, ScheduleKind::one_f_one_b, ScheduleKind::eager_1f1b,
                                ScheduleKind::interleaved, ScheduleKind::virtual_stages};
    options = {
        .schedule = kKinds[static_cast<std::size_t>(below(kKinds.size()))], .microbatches = kMicrobatches, .timeout = kTimeout};
    chunks = options.schedule == ScheduleKind::virtual_stages ? 2 : 1;
    ranks = chunks == 2 ? 2 + 2 * below(2) : 2 + below(3);  // virtual: a divisor of the microbatches
    victim = below(ranks);
    visit = below(way.phase == Phase::between_steps ? 3 : 2 * kMicrobatches);
  }
  [[nodiscard]] std::string text(std::uint64_t seed) const {
    return "seed " + std::to_string(seed) + ": " + std::string(to_string(options.schedule)) + " over " + std::to_string(ranks) +
           " ranks; rank " + std::to_string(victim) + " " + way.text + ", visit " + std::to_string(visit);
  }

  Way way;
  PipelineOptions options;
  int chunks;
  int ranks;
  int victim;
  int visit;  // of the phase by the victim, from 0, at which it is lost
};

struct Leaves {};  // thrown to return from the body

/// Loses the victim at the right visit of the phase.
class Trap {
 public:
  Trap(const Case& what, int rank) : case_(what), armed_(rank == what.victim) {}

  void visit(Phase phase) {
    if (!armed_ || phase != case_.way.phase || visits_++ != case_.visit) return;
    switch (case_.way.end) {
      case End::killed:
        raise(SIGKILL);
        break;
      case End::stopped:
        raise(SIGSTOP);
        break;
      case End::exits:
        std::_Exit(0);
      case End::leaves:
        throw Leaves();
      case End::throws:
        throw std::runtime_error("boom");
    }
  }

 private:
  const Case& case_;
  bool armed_;
  int visits_ = 0;
};

/// The stage with a trap in its forward and backward.
std::shared_ptr<Unit> with_trap(std::shared_ptr<Unit> stage, Trap& trap) {
  auto unit = std::make_shared<HookedUnit>(std::move(stage), HookedUnit::Hook(), HookedUnit::Hook());
  unit->before = [&trap, raw = unit.get()](const at::Tensor& input) {
    trap.visit(raw->is_training() ? Phase::forward : Phase::evaluation);
    return input;
  };
  unit->after = [&trap](at::Tensor output) {
    if (output.requires_grad()) {
      output.register_hook([&trap](const at::Tensor& gradient) {
        trap.visit(Phase::backward);
        return gradient;
      });
    }
    return output;
  };
  return unit;
}

void check_error(const StepError& error, const Case& what, int rank) {
  const std::string text = error.what();
  check(shoal::testing::mentions(text, "rank " + std::to_string(rank), "rank " + std::to_string(what.victim)),
        "both ranks are named: " + text);
  if (what.chunks == 1) {
    const std::string place = "rank " + std::to_string(rank) + ", stage " + std::to_string(rank) + ": ";
    check(text.rfind(place, 0) == 0, "the stage is named: " + text);
  }
  const StatusCode code = error.cause().code();
  switch (what.way.end) {
    case End::killed:
    case End::exits:
    case End::leaves:
      return check(code == StatusCode::peer_failed, "peer_failed: " + text);
    case End::stopped:
      return check(code == StatusCode::timeout, "timeout: " + text);
    case End::throws:
      return check(code == StatusCode::aborted && shoal::testing::mentions(text, "boom"), "aborted by the exception: " + text);
  }
}

/// Steps and evaluations in turn until the victim is lost.
void train(Communicator& communicator, const Case& what) {
  const int rank = communicator.rank();
  Trap trap(what, rank);
  std::vector<std::shared_ptr<Unit>> chunks = make_chunks(rank, what.ranks, what.chunks);
  for (std::shared_ptr<Unit>& chunk : chunks) chunk = with_trap(chunk, trap);
  PipelineModel model(chunks, communicator, what.options);
  ::torch::optim::SGD optimizer(model.parameters(), 0.01);
  const auto images = [&](int seed) { return rank == 0 ? make_images(2 * Case::kMicrobatches, seed) : at::Tensor(); };
  const auto targets = [&](int seed) { return rank == 0 ? make_targets(2 * Case::kMicrobatches, seed) : at::Tensor(); };
  auto began = SteadyClock::now();
  try {
    for (int step = 0; step < 4; ++step) {
      began = SteadyClock::now();
      optimizer.zero_grad();
      model.step(images(step), targets(step), cross_entropy);
      trap.visit(Phase::between_steps);
      optimizer.step();
      began = SteadyClock::now();
      model.evaluate(images(step));
    }
  } catch (const StepError& error) {
    const auto took = SteadyClock::now() - began;
    check(took < 2 * kTimeout + kSlack, "in time");  // the header of a step, then the step
    return check_error(error, what, rank);
  } catch (const Leaves&) {
    return;
  }
  check(false, "the loss of a rank ends the training");
}

TEST(PipelineSeries, LostRankIsNamedByAllOthers) {
  const auto seeds = shoal::testing::wanted_seeds({0, 8});
  for (std::uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
    const Case what(seed);
    SCOPED_TRACE(what.text(seed));
    const bool dies = what.way.end == End::killed || what.way.end == End::stopped;
    run_ranks(
        what.ranks, [&](Communicator& communicator) { train(communicator, what); }, dies ? what.victim : -1);
  }
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
