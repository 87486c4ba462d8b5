// Parts of the trainer: clock of communication, report, progress, schedules, optimizers.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include <nlohmann/json.hpp>

#include "torch_plugin/train/adadelta.h"
#include "torch_plugin/train/comm_clock.h"
#include "torch_plugin/train/optimizers.h"
#include "torch_plugin/train/progress.h"
#include "torch_plugin/train/report.h"
#include "torch_plugin/train/schedule.h"

namespace shoal::train {
namespace {

using std::chrono::milliseconds;

TEST(CommClock, CountsBusyOnceAndExposedAfterTheLastStart) {
  CommClock clock;
  const CommClock::Time zero{};
  const auto record = [&](CommClock::Kind kind, int start, int end, std::size_t bytes) {
    clock.begin();
    clock.record(kind, zero + milliseconds(start), zero + milliseconds(end), bytes);
  };
  record(CommClock::Kind::gradients, 50, 90, 200);  // the last to start, overlapped by the one before
  record(CommClock::Kind::gradients, 30, 70, 100);
  record(CommClock::Kind::blocking, 0, 10, 7);
  const CommTimes times = clock.take_step();
  EXPECT_DOUBLE_EQ(times.busy_s, 0.070);
  EXPECT_DOUBLE_EQ(times.exposed_s, 0.050);
  EXPECT_EQ(times.bytes, 300U);
  EXPECT_EQ(clock.take_step().bytes, 0U);
}

TEST(CommClock, CountsOnceWhatStartsInOneStepAndEndsInTheNext) {
  CommClock clock;
  const CommClock::Time zero{};
  clock.begin();
  clock.record(CommClock::Kind::gradients, zero + milliseconds(10), zero + milliseconds(30), 1);
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.020);
  clock.begin();
  clock.record(CommClock::Kind::gradients, zero + milliseconds(20), zero + milliseconds(40), 1);
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.010);
}

// Backends wake who waits for an operation before they tell the clock: a turn would miss its last one.
TEST(CommClock, SettlesWhenEveryOperationIsRecorded) {
  CommClock clock;
  clock.settle();  // nothing is under way
  clock.begin();
  clock.begin();
  clock.give_up();
  std::atomic<bool> recorded{false};
  std::thread backend([&] {
    recorded = true;
    clock.record(CommClock::Kind::gradients, {}, CommClock::Time{} + milliseconds(5), 7);
  });
  clock.settle();
  EXPECT_TRUE(recorded);
  EXPECT_EQ(clock.take_step().bytes, 7U);
  backend.join();
}

EpochResult result(const std::string& backend, double rate) {
  EpochResult made;
  made.backend = backend;
  made.overlap = "backward";
  made.model = "resnet18";
  made.dataset = "cifar10";
  made.ranks = 4;
  made.steps = 10;
  made.images_per_s = rate;
  made.comm_busy_s = 1;
  made.bytes = 4e9;
  made.step_loss = {2.0, 1.0};
  return made;
}

TEST(Report, JsonHasTheAgreedKeysAndNullWhereUnknown) {
  const nlohmann::json object = to_json({{"cores", 2}}, "shoal_train", {result("shoal", 120)});
  EXPECT_EQ(object["command"], "shoal_train");
  const nlohmann::json& row = object["results"][0];
  for (const char* key :
       {"backend",        "overlap",     "model",       "dataset",      "ranks",          "nodes",       "rate",
        "batch_per_rank", "epoch",       "seconds",     "images_per_s", "comm_exposed_s", "comm_busy_s", "bytes",
        "busbw_gbs",      "cpu_percent", "gpu_percent", "loss",         "accuracy",       "speedup_vs_1"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_DOUBLE_EQ(row["busbw_gbs"], 6.0);  // 2 * 3 / 4 of 4 GB in a second
  EXPECT_TRUE(row["accuracy"].is_null());
  EXPECT_TRUE(row["gpu_percent"].is_null());
}

TEST(Report, TableComparesTheBackends) {
  EpochResult other = result("gloo", 100);
  other.step_loss = {2.0, 1.001};
  const std::string table = to_table({result("shoal", 120), other});
  EXPECT_NE(table.find("shoal: 1.20 x the images/s of gloo"), std::string::npos) << table;
  EXPECT_NE(table.find("1.0e-03"), std::string::npos) << table;
}

TEST(Report, TableTellsApartTheOverlapsOfOneBackend) {
  EpochResult other = result("shoal", 100);
  other.overlap = "next_forward";
  const std::string table = to_table({result("shoal", 120), other});
  EXPECT_NE(table.find("shoal+backward: 1.20 x the images/s of shoal+next_forward"), std::string::npos) << table;
}

TEST(Report, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_EQ(write_json({}, "/no/such/folder/results.json").code(), StatusCode::system_error);
}

TEST(Report, Median) {
  EXPECT_FALSE(median({}).has_value());
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(Progress, SaysWhereItIs) {
  EXPECT_EQ(describe({.backend = "shoal",
                      .epoch = 1,
                      .epochs = 2,
                      .step = 40,
                      .steps = 312,
                      .images_per_s = 512.34,
                      .loss = 1.23456,
                      .remaining_s = 244.2}),
            "shoal  epoch 1/2  step 40/312  512.3 images/s  loss 1.2346  4:05 left");
}

TEST(Schedule, CosineGoesToNothingOverTheWholeRun) {
  const Schedule cosine{.kind = "cosine", .start = 0.2, .epoch_steps = 5, .epochs = 4};
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 10), 0.1);
  EXPECT_NEAR(learning_rate(cosine, 20), 0, 1e-15);
  EXPECT_GT(learning_rate(cosine, 4), learning_rate(cosine, 5));
}

TEST(Schedule, StepsAreMadeBetweenEpochs) {
  const Schedule step{.kind = "step", .start = 0.2, .step_factor = 0.5, .step_epochs = 2, .epoch_steps = 5, .epochs = 6};
  EXPECT_DOUBLE_EQ(learning_rate(step, 9), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(step, 10), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(step, 29), 0.05);
  const Schedule thirds{.kind = "step", .start = 1, .step_factor = 0.1, .step_epochs = 0, .epoch_steps = 1, .epochs = 3};
  EXPECT_DOUBLE_EQ(learning_rate(thirds, 0), 1);
  EXPECT_DOUBLE_EQ(learning_rate(thirds, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate({.kind = "constant", .start = 3}, 1000), 3);
}

TEST(Adadelta, IsZeilersAlgorithm) {
  constexpr int kNumbers = 5;
  ::torch::manual_seed(7);
  at::Tensor parameter = at::randn({kNumbers}, at::kDouble).requires_grad_();
  std::vector<double> x(parameter.data_ptr<double>(), parameter.data_ptr<double>() + kNumbers);
  std::vector<double> square(kNumbers, 0.0);
  std::vector<double> delta(kNumbers, 0.0);
  AdadeltaOptions options;
  options.lr = 0.1;
  options.weight_decay = 0.01;
  Adadelta optimizer({parameter}, options);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor gradient = at::randn({kNumbers}, at::kDouble);
    parameter.mutable_grad() = gradient;
    optimizer.step();
    for (int i = 0; i < kNumbers; ++i) {
      const double g = gradient[i].item<double>() + 0.01 * x[i];
      square[i] = 0.9 * square[i] + 0.1 * g * g;
      const double d = g * std::sqrt(delta[i] + 1e-6) / std::sqrt(square[i] + 1e-6);
      delta[i] = 0.9 * delta[i] + 0.1 * d * d;
      x[i] -= 0.1 * d;
      EXPECT_NEAR(parameter[i].item<double>(), x[i], 1e-12) << "step " << step;
    }
  }
}

TEST(Optimizers, GoOnFromWhatTheyRemember) {
  for (const char* kind : {"sgd", "adadelta", "adam"}) {
    TrainOptions options;
    options.optimizer = kind;
    ::torch::manual_seed(1);
    ::torch::nn::Linear first(3, 2);
    ::torch::nn::Linear other(3, 2);
    const auto step = [](::torch::nn::Linear& layer, ::torch::optim::Optimizer& optimizer, int number) {
      for (at::Tensor& parameter : layer->parameters()) parameter.mutable_grad() = at::full_like(parameter, 1.0 + number);
      optimizer.step();
    };
    Optimizers together;
    const auto one = together.maker(options)(first->parameters());
    EXPECT_TRUE(together.state(*first).empty());
    for (int number = 0; number < 3; ++number) step(first, *one, number);
    {
      const at::NoGradGuard no_grad;
      other->weight.copy_(first->weight);
      other->bias.copy_(first->bias);
    }
    Optimizers apart;  // one a parameter
    const auto weight = apart.maker(options)({other->weight});
    const auto bias = apart.maker(options)({other->bias});
    apart.restore(*other, together.state(*first));
    for (Optimizers* all : {&together, &apart}) all->set_learning_rate(0.5);
    const at::Tensor before = first->weight.detach().clone();
    step(first, *one, 3);
    for (const auto& optimizer : {weight.get(), bias.get()}) step(other, *optimizer, 3);
    EXPECT_FALSE(before.equal(first->weight)) << kind;
    EXPECT_TRUE(first->weight.equal(other->weight)) << kind;
    EXPECT_TRUE(first->bias.equal(other->bias)) << kind;
    options.optimizer = std::string(kind) == "adam" ? "sgd" : "adam";
    Optimizers wrong;
    const auto optimizer = wrong.maker(options)(first->parameters());
    EXPECT_THROW(wrong.restore(*first, together.state(*first)), c10::Error) << kind;
  }
}

}  // namespace
}  // namespace shoal::train
