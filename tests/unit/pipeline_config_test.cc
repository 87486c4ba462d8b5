// The configuration by SageMaker's keys: what each sets, and what is refused.
#include "src/pipeline/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/mentions.h"

namespace shoal::pipeline {
namespace {

using testing::Mentions;

Config config_of(const std::string& json) {
  const auto config = parse_config(json, "test.json");
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  return config.ok() ? *config : Config{};
}

std::string config_error(const std::string& json, StatusCode code = StatusCode::invalid_argument) {
  const auto config = parse_config(json, "test.json");
  EXPECT_FALSE(config.ok()) << json;
  EXPECT_EQ(config.status().code(), code) << config.status().to_string();
  EXPECT_THAT(config.status().message(), Mentions("test.json"));
  return config.status().message();
}

TEST(PipelineConfig, DefaultsAreThoseOfSageMaker) {
  const Config config = config_of(R"({"partitions": 4})");
  EXPECT_EQ(config.shape(), (Shape{ScheduleKind::interleaved, 4, 1, 1, {}}));
  EXPECT_EQ(config.optimize, Objective::memory);
  EXPECT_TRUE(config.auto_partition);
  EXPECT_FALSE(config.ddp);
  EXPECT_EQ(config.layout(4).value().group(0, Axis::pipeline).size(), 4U);
}

TEST(PipelineConfig, EveryKeyIsRead) {
  const Config config = config_of(R"({"pipeline_parallel_degree": 2, "microbatches": 8, "pipeline": "interleaved",
      "active_microbatches": 3, "optimize": "speed", "memory_limit_bytes": 1000000, "recompute": "where_needed",
      "recompute_units": "none", "batch_norm": "deferred", "auto_partition": false, "default_partition": 1,
      "placement_strategy": "spread",
      "ddp": true, "tensor_parallel_degree": 2, "prescaled_batch": true, "deterministic_server": false})");
  EXPECT_EQ(config.shape(), (Shape{ScheduleKind::interleaved, 2, 1, 8, 3}));
  EXPECT_EQ(config.optimize, Objective::speed);
  EXPECT_EQ(config.memory_limit_bytes, 1000000);
  EXPECT_EQ(config.batch_norm, BatchNormStatistics::deferred);
  EXPECT_EQ(config.request({}).rules.recompute, Recompute::where_needed);
  EXPECT_EQ(config.default_partition, 1);
  const Layout layout = config.layout(8).value();
  EXPECT_EQ(layout.rank({1, 0, 0}), 1);  // spread: replicas are neighbours
  EXPECT_EQ(layout.size(Axis::tensor), 2);
  EXPECT_EQ(config_of(R"({"partitions": 2, "pipeline": "virtual", "chunks": 2, "microbatches": 4})").shape().stages(), 4);
}

TEST(PipelineConfig, RecomputedUnitsAreATextOrAList) {
  const auto units_of = [](const std::string& value) {
    return config_of(R"({"partitions": 2, "recompute_units": )" + value + "}").request({}).rules.recompute_units;
  };
  EXPECT_EQ(units_of(R"("all")").rule, Recompute::all);
  EXPECT_EQ(units_of(R"("stem,b..d")").list, (std::vector<std::string>{"stem", "b..d"}));
  EXPECT_EQ(units_of(R"(["stem", "b..d"])").list, (std::vector<std::string>{"stem", "b..d"}));
  EXPECT_FALSE(units_of("[]").any());
  EXPECT_THAT(config_error(R"({"partitions": 2, "recompute": "all", "recompute_units": "stem"})"),
              Mentions("recompute is all", "recompute_units is stem", "one of both"));
}

TEST(PipelineConfig, MemoryWeightMakesTheObjectiveWeighted) {
  const PartitionRequest request = config_of(R"({"partitions": 2, "memory_weight": 0.25})").request({});
  EXPECT_EQ(request.objective, Objective::weighted);
  EXPECT_EQ(request.memory_weight, 0.25);
  EXPECT_EQ(request.rules.shape.ranks, 2);
}

TEST(PipelineConfig, UnknownKeyNamesTheNearest) {
  EXPECT_THAT(config_error(R"({"partitions": 2, "microbatch": 4})"), Mentions("'microbatch'", "'microbatches'"));
}

TEST(PipelineConfig, UnsupportedKeysAreAllNamed) {
  const std::string message =
      config_error(R"({"partitions": 2, "fp16": true, "shard_optimizer_state": true, "ddp": false})", StatusCode::unsupported);
  EXPECT_THAT(message, Mentions("fp16", "shard_optimizer_state"));
  EXPECT_THAT(message, ::testing::Not(Mentions("ddp")));
  EXPECT_THAT(config_error(R"({"partitions": 2, "prescaled_batch": false})", StatusCode::unsupported),
              Mentions("prescaled_batch"));
}

TEST(PipelineConfig, WrongValuesNameTheKey) {
  for (const auto& [json, key] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"partitions": 0})", "partitions"},
           {R"({"partitions": "4"})", "partitions"},
           {R"({"partitions": 2.5})", "partitions"},
           {R"({"partitions": 99999999999999999999})", "partitions"},
           {R"({"partitions": null})", "partitions"},
           {R"({"partitions": 2, "microbatches": -1})", "microbatches"},
           {R"({"partitions": 2, "pipeline": "gpipe"})", "pipeline"},
           {R"({"partitions": 2, "pipeline": 1})", "pipeline"},
           {R"({"partitions": 2, "optimize": "both"})", "optimize"},
           {R"({"partitions": 2, "memory_weight": 1.5})", "memory_weight"},
           {R"({"partitions": 2, "memory_weight": "0.5"})", "memory_weight"},
           {R"({"partitions": 2, "ddp": 1})", "ddp"},
           {R"({"partitions": 2, "placement_strategy": "near"})", "placement_strategy"},
           {R"({"partitions": 2, "active_microbatches": 0})", "active_microbatches"},
           {R"({"partitions": 2, "pipeline": "1f1b", "active_microbatches": 1})", "active_microbatches"},
           {R"({"partitions": 2, "pipeline": "virtual", "microbatches": 3})", "3 microbatches"},
           {R"({"partitions": 2, "default_partition": 0})", "default_partition"},
           {R"({"partitions": 2, "auto_partition": false})", "default_partition"},
           {R"({"partitions": 2, "auto_partition": false, "default_partition": 2})", "default_partition"},
           {R"({"partitions": 2, "memory_limit_bytes": 0})", "memory_limit_bytes"},
           {R"({"partitions": 2, "recompute_units": 3})", "recompute_units"},
           {R"({"partitions": 2, "recompute_units": ["a", 3]})", "recompute_units"},
           {R"({"partitions": 2, "recompute_units": "a,,b"})", "recompute_units"},
           {R"({"microbatches": 2})", "partitions"},
           {R"({"partitions": 2, "pipeline_parallel_degree": 4})", "pipeline_parallel_degree"},
           {R"({"partitions": 2)", "broken JSON"},
           {R"([2])", "not a JSON object"},
           {"", "broken JSON"}}) {
    EXPECT_THAT(config_error(json), Mentions(key)) << json;
  }
  EXPECT_EQ(config_of(R"({"partitions": 2, "pipeline_parallel_degree": 2})").partitions, 2);
}

TEST(PipelineConfig, MissingFileIsASystemError) {
  const auto config = read_config("/no/such/folder/config.json");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), StatusCode::system_error);
  EXPECT_THAT(config.status().message(), Mentions("/no/such/folder/config.json"));
}

}  // namespace
}  // namespace shoal::pipeline
