// Parts of the trainer: communication clock, report, progress, schedules, optimizers, the plan after ranks are lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "bench/train/adadelta.h"
#include "bench/train/comm_clock.h"
#include "bench/train/device.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/optimizers.h"
#include "bench/train/progress.h"
#include "bench/train/report.h"
#include "bench/train/schedule.h"
#include "bench/train/step_trace.h"
#include "bench/train/survival.h"
#include "tests/facts.h"

namespace shoal::train {
namespace {

using testing::mentions;

using std::chrono::milliseconds;

TEST(CommClock, BusyTimeIsCountedOnce) {
  CommClock clock;
  const CommClock::Time zero{};
  const auto record = [&](CommClock::Kind kind, int start, int end, std::size_t bytes) {
    clock.begin();
    clock.record({kind, zero + milliseconds(start), zero + milliseconds(end), bytes});
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

TEST(CommClock, OverlapOfTwoStepsIsCountedOnce) {
  CommClock clock;
  const CommClock::Time zero{};
  clock.begin();
  clock.record({CommClock::Kind::gradients, zero + milliseconds(10), zero + milliseconds(30), 1});
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.020);
  clock.begin();
  clock.record({CommClock::Kind::gradients, zero + milliseconds(20), zero + milliseconds(40), 1});
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.010);
}

// Backends wake a waiting thread before they record the operation, so a turn could miss its last operation.
TEST(CommClock, SettleWaitsForRecords) {
  CommClock clock;
  clock.settle();  // no operation is in flight
  clock.begin();
  clock.begin();
  clock.give_up();
  std::atomic<bool> recorded{false};
  std::thread backend([&] {
    recorded = true;
    clock.record({CommClock::Kind::gradients, {}, CommClock::Time{} + milliseconds(5), 7});
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

TEST(Report, JsonHasAllKeysAndNullIfUnknown) {
  const nlohmann::json object = to_json({{"cores", 2}}, "shoal_train", {result("shoal", 120)});
  EXPECT_EQ(object["command"], "shoal_train");
  const nlohmann::json& row = object["results"][0];
  for (const char* key : {"backend",     "overlap",        "model",  "dataset",  "ranks",        "nodes",
                          "rate",        "batch_per_rank", "epoch",  "seconds",  "images_per_s", "comm_exposed_s",
                          "comm_busy_s", "bytes",          "device", "threads",  "epoch_steps",  "busbw_gbs",
                          "cpu_percent", "gpu_percent",    "loss",   "accuracy", "speedup_vs_1"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_DOUBLE_EQ(row["busbw_gbs"], 6.0);  // 2 * 3 / 4 of 4 GB in a second
  EXPECT_TRUE(row["accuracy"].is_null());
  EXPECT_TRUE(row["gpu_percent"].is_null());
  EXPECT_TRUE(row["speedup_vs_1"].is_null());
}

TEST(Report, ReferenceRunHasSameSettingAndThreads) {
  EpochResult wanted = result("shoal", 120);
  wanted.threads = 2;
  const auto alone = [&](const std::function<void(EpochResult&)>& change) {
    EpochResult one = wanted;
    one.ranks = 1;
    one.images_per_s = 40;
    change(one);
    return one;
  };
  const auto found = [&](const std::vector<EpochResult>& results) {
    return images_per_s_alone(to_json({}, "", results), wanted);
  };
  EXPECT_EQ(found({alone([](EpochResult&) {})}), 40);
  EXPECT_FALSE(found({alone([](EpochResult& one) { one.threads = 1; })}).has_value());
  EXPECT_FALSE(found({alone([](EpochResult& one) { one.ranks = 2; })}).has_value());
  EXPECT_FALSE(found({alone([](EpochResult& one) { one.device = "cuda"; })}).has_value());
  EXPECT_FALSE(found({alone([](EpochResult& one) { one.batch_per_rank = 1; })}).has_value());
  EXPECT_FALSE(found({alone([](EpochResult& one) { one.images_per_s.reset(); })}).has_value());
  const EpochResult gloo = alone([](EpochResult& one) {
    one.backend = "gloo";
    one.images_per_s = 30;
  });
  EXPECT_EQ(found({gloo}), 30) << "one rank sends nothing, whatever the backend";
  EXPECT_EQ(found({alone([](EpochResult&) {}), gloo}), 40) << "a run of the same backend is preferred";
}

TEST(Report, RowWithWrongTypeIsNamed) {
  const std::string path = ::testing::TempDir() + "shoal-rows-" + std::to_string(::getpid()) + ".json";
  const nlohmann::json good = to_json({}, "", {result("shoal", 120), result("gloo", 100)});
  const auto read = [&](const nlohmann::json& object) {
    EXPECT_TRUE(write_json(object, path).ok());
    return read_results(path);
  };
  ASSERT_TRUE(read(good).ok());
  EXPECT_EQ(read(good)->at("results"), good["results"]);
  const auto expect_refused = [&](const char* field, const nlohmann::json& value, const char* type) {
    nlohmann::json changed = good;
    changed["results"][1][field] = value;
    const auto found = read(changed);
    EXPECT_EQ(found.ok() ? StatusCode::ok : found.status().code(), StatusCode::invalid_argument) << field;
    EXPECT_TRUE(found.ok() || mentions(found.status().message(), path, "row 2", field, type)) << found.status().message();
  };
  expect_refused("ranks", "1", "string");
  expect_refused("ranks", nullptr, "null");
  expect_refused("ranks", 1.5, "number");
  expect_refused("threads", nlohmann::json::array({1}), "array");
  expect_refused("batch_per_rank", true, "boolean");
  expect_refused("images_per_s", "40", "string");
  for (const char* field : {"backend", "model", "dataset", "device"}) expect_refused(field, 7, "number");
  nlohmann::json older = good;
  for (nlohmann::json& row : older["results"]) row.erase("threads");
  EXPECT_TRUE(read(older).ok());
  EXPECT_FALSE(images_per_s_alone(older, result("shoal", 120)).has_value()) << "its number of threads is unknown";
  nlohmann::json rows = good;
  rows["results"][1] = 7;
  EXPECT_TRUE(mentions(read(rows).status().message(), path, "row 2", "number", "object")) << read(rows).status().message();
  ASSERT_EQ(::unlink(path.c_str()), 0);
  EXPECT_EQ(read_results(::testing::TempDir()).status().code(), StatusCode::system_error) << "a folder";
}

TrainOptions asking(const std::vector<std::string>& backends, const std::string& device) {
  TrainOptions options;
  options.replicas.clear();
  for (const std::string& backend : backends) options.replicas.push_back({backend, "backward"});
  options.device = device;
  return options;
}

TEST(Device, AutoTakesGpuIfAllBackendsCan) {
  EXPECT_EQ(gpu_wish(asking({"shoal"}, "auto")), GpuWish::if_there);
  EXPECT_EQ(gpu_wish(asking({"shoal", "nccl"}, "auto")), GpuWish::always);
  EXPECT_EQ(gpu_wish(asking({"shoal", "gloo"}, "auto")), GpuWish::never);
  EXPECT_EQ(gpu_wish(asking({"mpi"}, "auto")), GpuWish::never);
  EXPECT_EQ(gpu_wish(asking({"shoal"}, "cpu")), GpuWish::never);
  EXPECT_EQ(gpu_wish(asking({"shoal"}, "cuda")), GpuWish::always);
  TrainOptions survivor = asking({"shoal"}, "auto");
  survivor.on_failure = "shrink";
  EXPECT_EQ(gpu_wish(survivor), GpuWish::never);
}

TEST(Device, BackendsOfTwoDevicesAreRefused) {
  for (const TrainOptions& fits :
       {asking({"shoal", "nccl"}, "auto"), asking({"shoal", "nccl"}, "cuda"), asking({"nccl"}, "auto"),
        asking({"shoal", "gloo", "mpi"}, "auto"), asking({"shoal", "gloo", "mpi"}, "cpu")}) {
    EXPECT_TRUE(check_device(fits).ok()) << check_device(fits).message();
  }
  const auto refused = [](const TrainOptions& options, const auto&... facts) {
    const Status status = check_device(options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << status.message();
    EXPECT_TRUE(mentions(status.message(), facts...)) << status.message();
  };
  refused(asking({"shoal", "gloo"}, "cuda"), "--device cuda", "gloo");
  refused(asking({"shoal", "mpi", "nccl"}, "auto"), "--backend nccl", "mpi");
  refused(asking({"shoal", "nccl"}, "cpu"), "--device cpu", "nccl");
  TrainOptions survivor = asking({"shoal"}, "cuda");
  survivor.on_failure = "shrink";
  refused(survivor, "--on-failure shrink");
}

// The first parts of the buckets start in order during backward. Later parts, parts of the step before and shoal's stages get
// the names of the same buckets.
TEST(StepTrace, OperationsAreNamedByBucket) {
  const std::shared_ptr<models::ImageClassifier> model = models::find_model("shufflenet_v2_x0.5")->make(1, 2);
  StepTrace trace(*model);
  trace.begin("forward");
  const auto in_forward = CommClock::Time::clock::now();
  std::this_thread::sleep_for(milliseconds(2));
  trace.next("backward");
  std::this_thread::sleep_for(milliseconds(6));
  trace.end();
  const std::vector<TraceEvent> training = trace.events();
  const auto backward = std::ranges::find(training, "backward", &TraceEvent::kind)->begin;
  const std::array<char, 3> memory{};
  using Kind = CommClock::Kind;
  const auto record = [&](Kind kind, CommClock::Time start, int bucket, std::size_t bytes, std::uint64_t call) {
    trace.communicated({kind, start, start + milliseconds(1), bytes, &memory[static_cast<std::size_t>(bucket)], call});
  };
  record(Kind::gradients, in_forward, 1, 4096, 7);                              // the rest of the last step's second bucket
  record(Kind::gradients, backward + std::chrono::microseconds(100), 2, 8, 8);  // the vote for the backward fraction
  record(Kind::gradients, backward + milliseconds(1), 0, 2048, 9);
  record(Kind::blocking, backward + milliseconds(1), 2, 512, 10);
  record(Kind::gradients, backward + milliseconds(2), 1, 1024, 11);
  record(Kind::gradients, backward + milliseconds(3), 0, 100, 12);
  for (const auto& [call, bytes] : {std::pair<std::uint64_t, std::size_t>{11, 1024}, {10, 512}}) {
    const StageEvent piece{.begin = backward + milliseconds(2),
                           .end = backward + milliseconds(3),
                           .call = call,
                           .message_bytes = bytes,
                           .bytes = bytes,
                           .communicator = 1,
                           .thread = 0,
                           .stage = Stage::wire};
    trace.add_stages({piece});
  }
  std::vector<std::string> names;
  for (const TraceEvent& event : trace.events()) {
    if (event.kind != "forward" && event.kind != "backward") names.push_back(event.kind + " " + event.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"gradients bucket 2, 4 KiB", "gradients 8 B", "gradients bucket 1, 2 KiB",
                                             "blocking 512 B", "gradients bucket 2, 1 KiB", "gradients bucket 1, 100 B",
                                             "wire bucket 2, 1 KiB", "wire 512 B"}));
}

TEST(Report, TableComparesTheBackends) {
  EpochResult other = result("gloo", 100);
  other.step_loss = {2.0, 1.001};
  const std::string table = to_table({result("shoal", 120), other});
  EXPECT_TRUE(std::regex_search(table, std::regex("shoal: 1[.]20 .*gloo"))) << table;
  EXPECT_NE(table.find("1.0e-03"), std::string::npos) << table;
}

TEST(Report, TableNamesOverlapsOfOneBackend) {
  EpochResult other = result("shoal", 100);
  other.overlap = "next_forward";
  const std::string table = to_table({result("shoal", 120), other});
  EXPECT_TRUE(std::regex_search(table, std::regex("shoal[+]backward: 1[.]20 .*shoal[+]next_forward"))) << table;
}

TEST(Report, UnwritableFileIsError) {
  EXPECT_EQ(write_json({}, "/no/such/folder/results.json").code(), StatusCode::system_error);
}

TEST(Report, MedianIsRight) {
  EXPECT_FALSE(median({}).has_value());
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(Progress, LineShowsPosition) {
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

TEST(Schedule, CosineReachesZeroAtEndOfRun) {
  const Schedule cosine{.kind = "cosine", .start = 0.2, .epoch_steps = 5, .epochs = 4};
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, 10), 0.1);
  EXPECT_NEAR(learning_rate(cosine, 20), 0, 1e-15);
  EXPECT_GT(learning_rate(cosine, 4), learning_rate(cosine, 5));
}

TEST(Schedule, RateChangesBetweenEpochs) {
  const Schedule step{.kind = "step", .start = 0.2, .step_factor = 0.5, .step_epochs = 2, .epoch_steps = 5, .epochs = 6};
  EXPECT_DOUBLE_EQ(learning_rate(step, 9), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(step, 10), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(step, 29), 0.05);
  const Schedule thirds{.kind = "step", .start = 1, .step_factor = 0.1, .step_epochs = 0, .epoch_steps = 1, .epochs = 3};
  EXPECT_DOUBLE_EQ(learning_rate(thirds, 0), 1);
  EXPECT_DOUBLE_EQ(learning_rate(thirds, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate({.kind = "constant", .start = 3}, 1000), 3);
}

TEST(Adadelta, UpdatesMatchZeilersAlgorithm) {
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

TEST(EpochPlan, PlanWithoutLossesFollowsEpochs) {
  EpochPlan plan(103, 4, 3, 2);  // 35 images a rank
  EXPECT_EQ(plan.pass_end(), 9);
  EXPECT_EQ(plan.end(), 18);
  EXPECT_EQ(plan.epoch_steps(), 9);
  EXPECT_EQ(plan.rest(2, 1, 7).size(), 35U - 8U);
  plan.next_pass();
  EXPECT_EQ(plan.pass(), 1);
  EXPECT_EQ(plan.pass_end(), 18);
  EXPECT_EQ(plan.end(), 18);
  for (const std::int64_t step : {9, 13, 17}) EXPECT_EQ(plan.scheduled(step), step);
  EXPECT_FALSE(plan.has_other_ranks());
  EpochPlan resumed(103, 4, 3, 2);
  EXPECT_TRUE(resumed.go_to(13).ok());
  EXPECT_EQ(resumed.pass(), 1);
  EXPECT_EQ(resumed.rest(13, 2, 7), plan.rest(13, 2, 7));
}

// The survivors get every image of the epoch that no rank had before the loss.
TEST(EpochPlan, SurvivorsGetUnseenImages) {
  constexpr std::size_t kImages = 96;
  for (const int loss_at : {0, 1, 5, 8}) {
    EpochPlan plan(kImages, 3, 4, 2);
    std::vector<int> seen(kImages, 0);
    const auto see = [&](int ranks, std::int64_t from, std::int64_t to) {
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<std::size_t> rest = plan.rest(from, rank, 5);
        const auto until = std::min(rest.size(), static_cast<std::size_t>(3 * (to - from)));
        for (std::size_t i = 0; i < until; ++i) ++seen[rest[i]];
      }
    };
    see(4, 0, loss_at);
    plan.go_on_with(2, loss_at);
    EXPECT_TRUE(plan.has_other_ranks());
    EXPECT_EQ(plan.pass_end(), loss_at + 2 * (8 - loss_at));
    EXPECT_EQ(plan.end(), plan.pass_end() + 16);
    see(2, loss_at, plan.pass_end());
    EXPECT_EQ(seen, std::vector<int>(kImages, 1)) << "lost at " << loss_at;
    EXPECT_EQ(plan.scheduled(plan.pass_end()), 8);
    EpochPlan resumed(kImages, 3, 2, 2);
    EXPECT_TRUE(resumed.go_to(plan.pass_end(), plan.numbers()).ok());
    EXPECT_EQ(resumed.pass(), 1);
    EXPECT_EQ(resumed.pass_end(), plan.pass_end() + 16);
    EXPECT_EQ(resumed.scheduled(resumed.pass_end()), 16);
  }
}

TEST(EpochPlan, MoreRanksShareUnseenImages) {
  EpochPlan plan(96, 3, 4, 2);
  EXPECT_EQ(plan.images_used(4), 48);
  plan.go_on_with(8, 4);
  EXPECT_TRUE(plan.has_other_ranks());
  EXPECT_EQ(plan.pass_end(), 6);
  EXPECT_EQ(plan.images_used(4), 48);
  EXPECT_EQ(plan.images_used(5), 72);
  EpochPlan resumed(96, 3, 8, 2);
  EXPECT_TRUE(resumed.go_to(5, plan.numbers()).ok());
  EXPECT_EQ(resumed.rest(5, 7, 3), plan.rest(5, 7, 3));
  EXPECT_EQ(resumed.scheduled(6), 8);
  resumed.next_pass();
  EXPECT_EQ(resumed.images_used(7), 96 + 24);
}

TEST(EpochPlan, NumbersFromFileAreChecked) {
  const std::vector<std::int64_t> good{4, 1, 9, 20};
  EXPECT_EQ(*EpochPlan::read_numbers(nlohmann::json(good)), good);
  for (const char* text : {"null", "\"4\"", "4", "{}", "[]", "[4,1,9]", "[4,1,9,20,0]", "[4,1,9,\"20\"]", "[4,1,9.5,20]",
                           "[4,1,9,[20]]", "[4,1,9223372036854775808,20]"}) {
    const auto read = EpochPlan::read_numbers(nlohmann::json::parse(text));
    EXPECT_EQ(read.status().code(), StatusCode::invalid_argument) << text;
    EXPECT_TRUE(mentions(read.status().message(), "course", "4")) << text << ": " << read.status().message();
  }
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EpochPlan one(103, 4, 3, 2);
  EXPECT_TRUE(one.go_to(11, good).ok());
  const auto expect_refused = [&](std::int64_t step, const std::vector<std::int64_t>& numbers, const auto&... facts) {
    EpochPlan plan(103, 4, 3, 2);
    const std::vector<std::int64_t> before = plan.numbers();
    const Status status = plan.go_to(step, numbers);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_EQ(plan.numbers(), before);
    EXPECT_TRUE(mentions(status.message(), facts...)) << status.message();
  };
  // The message has the wrong number, and its minimum and maximum.
  expect_refused(11, {0, 1, 9, 20}, "course", "ranks", "0", "1", "1048576");
  expect_refused(11, {kHuge, 1, 9, 20}, "course", "ranks", "9223372036854775807", "1", "1048576");
  expect_refused(11, {4, -1, 9, 20}, "course", "-1", "0", "9");
  expect_refused(11, {4, 10, 9, 20}, "course", "10", "0", "9");
  expect_refused(11, {4, 1, -kHuge, 20}, "course", "step", "-9223372036854775807", "0", "11");
  expect_refused(11, {4, 1, 12, 20}, "course", "step", "12", "0", "11");
  expect_refused(11, {4, 1, 9, -1}, "course", "images", "-1", "0", "103");
  expect_refused(11, {4, 1, 9, 104}, "course", "images", "104", "0", "103");
  expect_refused(-1, {}, "steps", "-1", "0", "9007199254740992");
  expect_refused(kHuge, {}, "steps", "9223372036854775807", "0", "9007199254740992");
}

// A loop over the passes would take too long for a large step.
TEST(EpochPlan, JumpToLastStepIsFast) {
  EpochPlan plan(103, 4, 3, 2);  // 9 steps a pass
  ASSERT_TRUE(plan.go_to(EpochPlan::kMostSteps).ok());
  EXPECT_EQ(plan.pass(), EpochPlan::kMostSteps / 9);
  EXPECT_GT(plan.pass_end(), EpochPlan::kMostSteps);
  EXPECT_LE(plan.end(), EpochPlan::kMostSteps) << "all passes are over";
  EpochPlan known(103, 4, 3, 2);
  ASSERT_TRUE(known.go_to(EpochPlan::kMostSteps, {4, 0, 2, 103}).ok()) << "lost when all images had been seen";
  EXPECT_EQ(known.pass(), 1 + (EpochPlan::kMostSteps - 2) / 9);
}

TEST(OptimizerState, SgdWithoutMomentumHasNone) {
  const ::torch::optim::SGD sgd({at::zeros({2})}, ::torch::optim::SGDOptions(0.1));
  EXPECT_TRUE(to_tensors(*to_state(sgd, {})).empty());
  EXPECT_THROW((void)to_state(sgd, {{"exp_avg", at::zeros({2})}}), c10::Error) << "state of Adam";
}

TEST(Undo, LastStepCanBeUndone) {
  for (const char* kind : {"sgd", "adadelta", "adam"}) {
    SCOPED_TRACE(kind);
    TrainOptions options;
    options.optimizer = kind;
    options.on_failure = "shrink";
    ::torch::manual_seed(1);
    ::torch::nn::Linear layer(3, 2);
    Optimizers optimizers;
    const auto weight = optimizers.maker(options)({layer->weight});
    const auto bias = optimizers.maker(options)({layer->bias});
    const auto step = [](const at::Tensor& parameter, ::torch::optim::Optimizer& optimizer, double gradient) {
      at::Tensor(parameter).mutable_grad() = at::full_like(parameter, gradient);
      optimizer.step();
    };
    const auto all = [&] {
      Tensors state = optimizers.state(*layer);
      for (const auto& named : layer->named_parameters()) state[named.key()] = named.value().detach().clone();
      return state;
    };
    const auto expect_equal = [](const Tensors& one, const Tensors& other) {
      ASSERT_EQ(one.size(), other.size());
      for (const auto& [name, tensor] : one) EXPECT_TRUE(tensor.equal(other.at(name))) << name;
    };
    for (int made = 0; made < 3; ++made) {
      const Tensors before = all();
      EXPECT_EQ(optimizers.complete_steps(), made);
      step(layer->weight, *weight, 1 + made);
      EXPECT_EQ(optimizers.complete_steps(), made) << "the bias has not been updated";
      EXPECT_FALSE(before.at("weight").equal(layer->weight));
      optimizers.go_back_to(made);
      expect_equal(all(), before);
      step(layer->weight, *weight, 1 + made);
      step(layer->bias, *bias, 1 + made);
      EXPECT_EQ(optimizers.complete_steps(), made + 1);
      const Tensors after = all();
      optimizers.go_back_to(made + 1);  // nothing to do
      expect_equal(all(), after);
      optimizers.go_back_to(made);
      expect_equal(all(), before);
      EXPECT_THROW(optimizers.go_back_to(made - 1), c10::Error);
      step(layer->weight, *weight, 1 + made);
      step(layer->bias, *bias, 1 + made);
      expect_equal(all(), after);
    }
    optimizers.restore(*layer, optimizers.state(*layer));
    EXPECT_EQ(optimizers.complete_steps(), 0);
    EXPECT_THROW(optimizers.go_back_to(-1), c10::Error);
  }
}

TEST(Loss, DescriptionIsOneLine) {
  EXPECT_EQ(describe(Loss{.ranks = {2}, .step = 37, .left = 3, .seconds = 0.84}),
            "rank 2 is lost: 3 ranks go on from step 37 after 0.8 s");
  EXPECT_EQ(describe(Loss{.ranks = {0, 3}, .step = 5, .left = 1, .seconds = 2}),
            "ranks 0, 3 are lost: 1 rank goes on from step 5 after 2.0 s");
}

TEST(Optimizers, RestoredStateContinuesTraining) {
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
    for (const auto& [name, tensor] : together.state(*first)) {
      const bool counts = name.ends_with("/step");
      for (const at::Tensor& bad :
           {counts ? at::scalar_tensor(-1, at::kLong) : at::zeros({1}), counts ? tensor.to(at::kFloat) : tensor.to(at::kDouble),
            counts ? at::scalar_tensor(std::int64_t{1} << 62, at::kLong) : tensor.to_sparse()}) {
        Tensors damaged = together.state(*first);
        damaged[name] = bad;
        EXPECT_THROW(apart.restore(*other, damaged), c10::Error) << kind << " " << name;
      }
    }
    options.optimizer = std::string(kind) == "adam" ? "sgd" : "adam";
    Optimizers wrong;
    const auto optimizer = wrong.maker(options)(first->parameters());
    EXPECT_THROW(wrong.restore(*first, together.state(*first)), c10::Error) << kind;
  }
}

}  // namespace
}  // namespace shoal::train
