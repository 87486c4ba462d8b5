// A rank of bench/bubbles: a pipeline whose stages sleep where others compute, so that a step shows only the schedule, the
// messages and the runtime. Rank 0 prints one line of JSON: the seconds of each measured step.
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/runtime/pipeline_model.h"

namespace {

using namespace shoal;
using namespace shoal::parallel;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// Passes its input on; the backward sleeps.
class SleepInBackward final : public ::torch::autograd::Function<SleepInBackward> {
 public:
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& input, double ms) {
    context->saved_data["ms"] = ms;
    return input.clone();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    std::this_thread::sleep_for(Milliseconds(context->saved_data["ms"].toDouble()));
    return {gradients[0], at::Tensor()};
  }
};

class SleepingStage final : public Unit {
 public:
  SleepingStage(double forward_ms, double backward_ms) : forward_ms_(forward_ms), backward_ms_(backward_ms) {}
  at::Tensor forward(at::Tensor input) override {
    std::this_thread::sleep_for(Milliseconds(forward_ms_));
    return SleepInBackward::apply(input * weight_, backward_ms_);
  }

 private:
  const double forward_ms_;
  const double backward_ms_;
  at::Tensor weight_ = register_parameter("weight", at::ones({1}));
};

struct Arguments {
  std::string pipeline = "1f1b";
  int chunks = 1;
  int microbatches = 8;
  int steps = 10;
  double forward_ms = 20;   // of a rank, all its chunks together
  double backward_ms = 40;  // the same
  int bytes = 64;           // of a message
};

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

template <typename T>
T require(Result<T> result) {
  require(result.status());
  return std::move(result).value();
}

void run(const Arguments& arguments) {
  at::set_num_threads(1);
  const auto communicator = require(Communicator::create());
  std::vector<std::shared_ptr<Unit>> chunks;
  for (int i = 0; i < arguments.chunks; ++i) {
    chunks.push_back(
        std::make_shared<SleepingStage>(arguments.forward_ms / arguments.chunks, arguments.backward_ms / arguments.chunks));
  }
  PipelineModel model(
      chunks, *communicator,
      {.schedule = require(pipeline::parse_schedule_kind(arguments.pipeline)), .microbatches = arguments.microbatches});
  const at::Tensor images = at::randn({arguments.microbatches, arguments.bytes / 4});
  const auto loss = [](const at::Tensor& output, const at::Tensor& /*target*/) { return output.mean(); };
  std::vector<double> seconds;
  for (int step = -2; step < arguments.steps; ++step) {
    require(communicator->barrier());
    const auto start = std::chrono::steady_clock::now();
    model.step(images, {}, loss);
    require(communicator->barrier());
    if (step >= 0) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  if (communicator->rank() == 0) std::puts(nlohmann::json{{"seconds", seconds}}.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("A rank of bench/bubbles", "sleeping_stages");
  app.add_option("--pipeline", arguments.pipeline, "schedule");
  app.add_option("--chunks", arguments.chunks, "stages of each rank, with the schedule virtual")->check(CLI::PositiveNumber);
  app.add_option("--microbatches", arguments.microbatches)->check(CLI::PositiveNumber);
  app.add_option("--steps", arguments.steps, "measured steps; two more come before them")->check(CLI::PositiveNumber);
  app.add_option("--forward-ms", arguments.forward_ms, "of a rank for a microbatch")->check(CLI::NonNegativeNumber);
  app.add_option("--backward-ms", arguments.backward_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--bytes", arguments.bytes, "of a message between stages")->check(CLI::Range(4, 1 << 30));
  CLI11_PARSE(app, argc, argv);
  try {
    run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sleeping_stages: %s\n", error.what());
    return 1;
  }
  return 0;
}
