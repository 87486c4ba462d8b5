// The network, the clock of communication and the report.
#include <gtest/gtest.h>

#include <set>

#include <nlohmann/json.hpp>

#include "torch_plugin/models/model.h"
#include "torch_plugin/train/comm_clock.h"
#include "torch_plugin/train/progress.h"
#include "torch_plugin/train/report.h"

namespace shoal::train {
namespace {

using std::chrono::milliseconds;

TEST(Models, ResNet18HasItsParametersAndShapes) {
  const Result<models::ModelInfo> info = models::find_model("resnet18");
  ASSERT_TRUE(info.ok());
  const auto model = info->make(3, 10);
  EXPECT_EQ(models::count_parameters(*model), 11'173'962);
  EXPECT_EQ(model->parameters().size(), 62U);
  std::int64_t floats = 0;
  for (const at::Tensor& buffer : model->buffers()) floats += buffer.is_floating_point() ? buffer.numel() : 0;
  EXPECT_EQ(floats, 9'600);  // mean and variance of 20 normalisations
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model->forward(at::zeros({2, 3, 32, 32})).sizes(), (std::vector<std::int64_t>{2, 10}));
  EXPECT_EQ(info->make(1, 10)->forward(at::zeros({2, 1, 28, 28})).sizes(), (std::vector<std::int64_t>{2, 10}));
}

TEST(Models, AnUnknownNameListsTheKnownOnes) {
  const Result<models::ModelInfo> info = models::find_model("resnet19");
  EXPECT_EQ(info.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(info.status().message().find("resnet18"), std::string::npos);
}

TEST(CommClock, CountsBusyOnceAndExposedAfterTheLastStart) {
  CommClock clock;
  const CommClock::Time zero{};
  const auto record = [&](CommClock::Kind kind, int start, int end, std::size_t bytes) {
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
  clock.record(CommClock::Kind::gradients, zero + milliseconds(10), zero + milliseconds(30), 1);
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.020);
  clock.record(CommClock::Kind::gradients, zero + milliseconds(20), zero + milliseconds(40), 1);
  EXPECT_DOUBLE_EQ(clock.take_step().busy_s, 0.010);
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

}  // namespace
}  // namespace shoal::train
