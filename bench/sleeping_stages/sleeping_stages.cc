// A rank of bench/bubbles: a pipeline whose stages sleep where others compute, so that a step shows only the schedule, the
// messages and the runtime. With replicas, the gradients of each stage are averaged, too. Rank 0 prints one line of JSON: the
// seconds of each measured step and, with replicas, of each average by itself.
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
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
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/replicas/replica_reduction.h"
#include "torch_plugin/parallel/runtime/pipeline_model.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace {

using namespace shoal;
using namespace shoal::parallel;
using Milliseconds = std::chrono::duration<double, std::milli>;

/// Passes its input on, and a gradient of zeros to its weight. Its tensor operations are within the time of its sleep.
class SleepingFunction final : public ::torch::autograd::Function<SleepingFunction> {
 public:
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            double forward_ms, double backward_ms) {
    const auto end = end_of(forward_ms);
    context->saved_data["weights"] = weight.numel();
    context->saved_data["ms"] = backward_ms;
    at::Tensor output = input.clone();
    std::this_thread::sleep_until(end);
    return output;
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list gradients) {
    const auto end = end_of(context->saved_data["ms"].toDouble());
    const at::Tensor of_weight = at::zeros({1}).expand({context->saved_data["weights"].toInt()});
    std::this_thread::sleep_until(end);
    return {gradients[0], of_weight, at::Tensor(), at::Tensor()};
  }

 private:
  static std::chrono::steady_clock::time_point end_of(double ms) {
    return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(Milliseconds(ms));
  }
};

class SleepingStage final : public Unit {
 public:
  SleepingStage(double forward_ms, double backward_ms, std::int64_t parameters)
      : forward_ms_(forward_ms), backward_ms_(backward_ms), weight_(register_parameter("weight", at::ones({parameters}))) {}
  at::Tensor forward(at::Tensor input) override { return SleepingFunction::apply(input, weight_, forward_ms_, backward_ms_); }

 private:
  const double forward_ms_;
  const double backward_ms_;
  at::Tensor weight_;
};

struct Arguments {
  std::string pipeline = "1f1b";
  int chunks = 1;
  int microbatches = 8;
  int steps = 10;
  double forward_ms = 20;   // of a rank, all its chunks together
  double backward_ms = 40;  // the same
  int bytes = 64;           // of a message
  int replicas = 1;
  double gradient_mib = 0;  // of a rank
  bool averages = true;
};

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

template <typename T>
T require(Result<T> result) {
  require(result.status());
  return std::move(result).value();
}

std::shared_ptr<ReplicaReduction> average_over(std::unique_ptr<Communicator> replicas,
                                               const std::vector<std::shared_ptr<Unit>>& chunks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, replicas->rank(), replicas->size());
  group->setBackend(
      at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
      c10::make_intrusive<shoal::torch::ProcessGroupShoal>(std::move(replicas), shoal::torch::StartRound{store, 0},
                                                           c10::make_intrusive<shoal::torch::ProcessGroupShoal::Options>()));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setGroupName("replicas");
  return std::make_shared<ReplicaReduction>(chunks, std::move(group));
}

/// From a barrier to the next one.
template <typename Work>
double seconds_of(Communicator& all, const Work& work) {
  require(all.barrier());
  const auto start = std::chrono::steady_clock::now();
  work();
  require(all.barrier());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const Arguments& arguments) {
  at::set_num_threads(1);
  const auto all = require(Communicator::create());
  const auto parameters =
      static_cast<std::int64_t>(std::max(1.0, arguments.gradient_mib * (1 << 20) / sizeof(float) / arguments.chunks));
  std::vector<std::shared_ptr<Unit>> chunks;
  for (int i = 0; i < arguments.chunks; ++i) {
    chunks.push_back(std::make_shared<SleepingStage>(arguments.forward_ms / arguments.chunks,
                                                     arguments.backward_ms / arguments.chunks, parameters));
  }
  if (all->size() % arguments.replicas != 0) {
    throw std::runtime_error("--replicas " + std::to_string(arguments.replicas) + " does not divide the " +
                             std::to_string(all->size()) + " ranks; give a divisor");
  }
  const int stages = all->size() / arguments.replicas;
  const auto communicator = require(all->split(all->rank() / stages, all->rank()));
  const auto replicas = require(all->split(all->rank() % stages, all->rank()));
  std::shared_ptr<ReplicaReduction> average;
  if (arguments.replicas > 1 && arguments.averages)
    average = average_over(require(all->split(all->rank() % stages, all->rank())), chunks);
  PipelineModel model(
      chunks, *communicator,
      {.schedule = require(pipeline::parse_schedule_kind(arguments.pipeline)), .microbatches = arguments.microbatches},
      average);
  const at::Tensor images = at::randn({arguments.microbatches, arguments.bytes / 4});
  const auto loss = [](const at::Tensor& output, const at::Tensor& /*target*/) { return output.mean(); };
  std::vector<float> gradients(static_cast<std::size_t>(parameters * arguments.chunks));
  std::vector<double> seconds;
  std::vector<double> average_seconds;
  for (int step = -2; step < arguments.steps; ++step) {
    for (const at::Tensor& parameter : model.parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
    const double whole = seconds_of(*all, [&] { model.step(images, {}, loss); });
    if (step >= 0) seconds.push_back(whole);
    if (!average) continue;
    const double alone = seconds_of(*all, [&] {
      require(replicas->all_reduce(gradients.data(), gradients.data(), gradients.size(), DataType::float32, ReduceOp::sum));
    });
    if (step >= 0) average_seconds.push_back(alone);
  }
  nlohmann::json result{{"seconds", seconds}};
  if (average) result["average_seconds"] = average_seconds;
  if (all->rank() == 0) std::puts(result.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // otherwise each sleep takes 50 us longer
  Arguments arguments;
  CLI::App app("A rank of bench/bubbles", "sleeping_stages");
  app.add_option("--pipeline", arguments.pipeline, "schedule");
  app.add_option("--chunks", arguments.chunks, "stages of each rank, with the schedule virtual")->check(CLI::PositiveNumber);
  app.add_option("--microbatches", arguments.microbatches)->check(CLI::PositiveNumber);
  app.add_option("--steps", arguments.steps, "measured steps; two more come before them")->check(CLI::PositiveNumber);
  app.add_option("--forward-ms", arguments.forward_ms, "of a rank for a microbatch")->check(CLI::NonNegativeNumber);
  app.add_option("--backward-ms", arguments.backward_ms)->check(CLI::NonNegativeNumber);
  app.add_option("--bytes", arguments.bytes, "of a message between stages")->check(CLI::Range(4, 1 << 30));
  app.add_option("--replicas", arguments.replicas, "pipelines; the ranks are divided among them")->check(CLI::PositiveNumber);
  app.add_option("--gradient-mib", arguments.gradient_mib, "of a rank")->check(CLI::NonNegativeNumber);
  app.add_flag("!--without-averages", arguments.averages, "replicas keep their own gradients");
  CLI11_PARSE(app, argc, argv);
  try {
    run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sleeping_stages: %s\n", error.what());
    return 1;
  }
  return 0;
}
