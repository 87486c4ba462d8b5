// The partitioner against worked answers, what it refuses, manual partitions, and the partition file.

#include "src/pipeline/partitioner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "src/pipeline/manual_partition.h"
#include "src/pipeline/partition_file.h"
#include "tests/mentions.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Mentions;

constexpr Link kLink{100, 50};
constexpr double kNoLimit = -1;

PartitionRequest request_of(Objective objective, ScheduleKind kind, Link link = {}, bool overlaps = false,
                            double limit = kNoLimit) {
  PartitionRequest request;
  request.rules = {shape_of(kind, 3, 4), link, overlaps, Recompute::none, 2};
  request.objective = objective;
  if (limit != kNoLimit) request.memory_limit_bytes = static_cast<std::int64_t>(limit);
  return request;
}

Partition solve(const PartitionRequest& request, const Profile& profile = worked_example()) {
  const auto found = partition(profile, request);
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  return found.ok() ? *found : Partition{};
}

std::vector<double> times_of(const Partition& partition) {
  std::vector<double> times;
  for (const Stage& stage : partition.stages) times.push_back(stage.time_us);
  return times;
}

// ---- worked answers ----

TEST(PipelineExample, SpeedWithoutALinkBalancesTime) {
  const Partition found = solve(request_of(Objective::speed, ScheduleKind::one_f_one_b));
  EXPECT_THAT(found.cuts(), ElementsAre(1, 4));
  EXPECT_EQ(found.value, 7800);
  EXPECT_THAT(times_of(found), ElementsAre(4500, 7800, 6300));
}

TEST(PipelineExample, SpeedCountsMessages) {
  const Partition found = solve(request_of(Objective::speed, ScheduleKind::one_f_one_b, kLink));
  EXPECT_THAT(found.cuts(), ElementsAre(1, 3));
  EXPECT_EQ(found.value, 9600);
  EXPECT_THAT(times_of(found), ElementsAre(7260, 9600, 8940));
}

TEST(PipelineExample, OverlapHidesMessages) {
  const Partition found = solve(request_of(Objective::speed, ScheduleKind::one_f_one_b, kLink, true));
  EXPECT_THAT(found.cuts(), ElementsAre(1, 4));
  EXPECT_EQ(found.value, 7800);
  EXPECT_THAT(times_of(found), ElementsAre(4500, 7800, 6300));
}

TEST(PipelineExample, MemoryDependsOnTheSchedule) {
  const Partition simple = solve(request_of(Objective::memory, ScheduleKind::simple));
  EXPECT_THAT(simple.cuts(), ElementsAre(2, 3));
  EXPECT_EQ(simple.value, 928000);
  EXPECT_THAT(bytes_of(simple), ElementsAre(928000, 672000, 636000));
  const Partition in_turn = solve(request_of(Objective::memory, ScheduleKind::one_f_one_b));
  EXPECT_THAT(in_turn.cuts(), ElementsAre(1, 2));
  EXPECT_EQ(in_turn.value, 723000);
  EXPECT_THAT(bytes_of(in_turn), ElementsAre(544000, 480000, 723000));
}

TEST(PipelineExample, ALimitForbidsStages) {
  const Partition found = solve(request_of(Objective::speed, ScheduleKind::one_f_one_b, kLink, false, 760000));
  EXPECT_THAT(found.cuts(), ElementsAre(1, 2));
  EXPECT_EQ(found.value, 12020);
  EXPECT_THAT(times_of(found), ElementsAre(7260, 9080, 12020));
}

TEST(PipelineExample, ALimitTooSmallNamesTheSmallest) {
  const auto found = partition(worked_example(), request_of(Objective::speed, ScheduleKind::one_f_one_b, kLink, false, 722999));
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(found.status().message(), Mentions("722999", "723000", "'unit2' to 'unit5'"));
}

TEST(PipelineExample, WeightedMixesBoth) {
  PartitionRequest request = request_of(Objective::weighted, ScheduleKind::one_f_one_b, kLink);
  request.memory_weight = 0.2;
  const Partition fast = solve(request);
  EXPECT_THAT(fast.cuts(), ElementsAre(1, 3));
  EXPECT_NEAR(fast.value, 0.54954, 0.000005);
  request.memory_weight = 0.8;
  const Partition small = solve(request);
  EXPECT_THAT(small.cuts(), ElementsAre(1, 2));
  EXPECT_NEAR(small.value, 0.62318, 0.000005);
}

TEST(PipelineExample, TheEndsOfTheWeightAreSpeedAndMemory) {
  PartitionRequest request = request_of(Objective::weighted, ScheduleKind::one_f_one_b, kLink);
  EXPECT_EQ(solve(request).value, 9600);
  EXPECT_EQ(solve(request).objective, Objective::speed);
  request.memory_weight = 1;
  EXPECT_EQ(solve(request).value, 723000);
  EXPECT_EQ(solve(request).objective, Objective::memory);
}

TEST(PipelineExample, RecomputationTradesTimeForBytes) {
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::one_f_one_b);
  request.rules.recompute = Recompute::all;
  const auto found = partition_at(worked_example(), request, {1, 4});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  // The last stage holds one microbatch and repeats nothing.
  EXPECT_THAT(times_of(*found), ElementsAre(4500 + 1500, 7800 + 2600, 6300));
  EXPECT_THAT(bytes_of(*found), ElementsAre(4 * 72000 + 64000 + 64000, 4 * 116000 + 2 * 64000 + 144000 + 96000,
                                            4 * 48000 + 32000 + 19000 + 32000));
}

TEST(PipelineExample, BackwardFreesStashesBehindAWorkspace) {
  Profile profile = worked_example();
  profile.units[1].workspace_bytes = 90000;  // 32000 and 64000 are freed by then
  profile.units[2].workspace_bytes = 70000;
  profile.units[3].workspace_bytes = 5000;
  profile.units[3].buffer_bytes = 100;
  const PartitionRequest request = request_of(Objective::memory, ScheduleKind::one_f_one_b);
  const auto found = partition_at(profile, request, {1, 4});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  const auto plain = bytes_of(*partition_at(worked_example(), request, {1, 4}));
  EXPECT_THAT(bytes_of(*found), ElementsAre(plain[0], plain[1] + 100 + 70000 - 64000, plain[2]));
  const auto cut_behind = bytes_of(*partition_at(profile, request, {1, 2}));
  EXPECT_EQ(cut_behind[1], bytes_of(*partition_at(worked_example(), request, {1, 2}))[1] + 90000);
}

TEST(PipelineExample, StagesRecomputeWhereLimitNeedsIt) {
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::simple);
  request.rules.recompute = Recompute::where_needed;
  request.memory_limit_bytes = 900000;  // the smallest largest stage has 928000 bytes otherwise
  const auto found = partition_at(worked_example(), request, {2, 3});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_THAT(found->recomputes(), ElementsAre(true, false, false));
  EXPECT_THAT(bytes_of(*found), ElementsAre(4 * 108000 + 112000 + 48000, 672000, 636000));
  EXPECT_THAT(times_of(*found), ElementsAre(8700 + 2900, 1800, 8100));
  EXPECT_GT(found->times.stages[0].input_ps, found->times.stages[0].weight_ps);

  const auto chosen = partition_at(worked_example(), request, {2, 3}, {false, true, true});  // 928000 bytes
  EXPECT_EQ(chosen.status().code(), StatusCode::invalid_argument);
  request.memory_limit_bytes.reset();
  const auto given = partition_at(worked_example(), request, {2, 3}, {false, true, true});
  EXPECT_THAT(given->recomputes(), ElementsAre(false, true, true));
}

// ---- what is refused ----

Status refused(const PartitionRequest& request, const Profile& profile = worked_example()) {
  const auto found = partition(profile, request);
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  return found.status();
}

TEST(PipelineRequest, NamesNumbersOutOfRange) {
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::one_f_one_b);
  request.rules.shape.ranks = 7;
  EXPECT_THAT(refused(request).message(), Mentions("7 partitions", "6"));
  request.rules.shape.ranks = 0;
  EXPECT_THAT(refused(request).message(), Mentions("0 partitions", "1"));
  request.rules.shape.ranks = 3;
  request.rules.shape.microbatches = 0;
  EXPECT_THAT(refused(request).message(), Mentions("0 microbatches", "1"));
  request.rules.shape.microbatches = 4;
  request.rules.shape.chunks = 2;
  EXPECT_THAT(refused(request).message(), Mentions("2 chunks", "1f1b", "virtual"));
  request.rules.shape.chunks = 0;
  EXPECT_THAT(refused(request).message(), Mentions("0 chunks"));
  request.rules.shape.chunks = 1;
  request.rules.link.bytes_per_us = 0;
  EXPECT_THAT(refused(request).message(), Mentions("0 bytes"));
  request.rules.link.bytes_per_us.reset();
  request.rules.link.latency_us = -1;
  EXPECT_THAT(refused(request).message(), Mentions("-1 us"));
  request.rules.link.latency_us = 0;
  request.rules.optimizer_states = -1;
  EXPECT_THAT(refused(request).message(), Mentions("-1 optimizer states"));
  request.rules.optimizer_states = 0;
  request.objective = Objective::weighted;
  request.memory_weight = 1.5;
  EXPECT_THAT(refused(request).message(), Mentions("1.5"));
}

TEST(PipelineRequest, RecomputationWhereNeededNeedsALimit) {
  PartitionRequest request = request_of(Objective::memory, ScheduleKind::one_f_one_b);
  request.rules.recompute = Recompute::where_needed;
  EXPECT_THAT(refused(request).message(), Mentions("where_needed", "memory limit"));
  request.memory_limit_bytes = 1;
  const auto smallest = [&] {
    PartitionRequest all = request_of(Objective::memory, ScheduleKind::one_f_one_b);
    all.rules.recompute = Recompute::all;
    return static_cast<std::int64_t>(solve(all).value);
  }();
  EXPECT_THAT(refused(request).message(), Mentions(std::to_string(smallest)));
  request.memory_limit_bytes = smallest;
  EXPECT_EQ(solve(request).value, static_cast<double>(smallest));
}

TEST(PipelineRequest, VirtualStagesNeedUnits) {
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::virtual_stages);
  request.rules.shape.microbatches = 6;
  request.rules.shape.chunks = 2;
  EXPECT_EQ(solve(request).stages.size(), 6U);
  request.rules.shape.chunks = 3;
  EXPECT_THAT(refused(request).message(), Mentions("3 partitions", "3 chunks", "6 units", "at most 2 chunks"));
  request.rules.shape.chunks = 2;
  request.objective = Objective::weighted;
  request.memory_weight = 0.5;
  EXPECT_THAT(refused(request).message(), Mentions("2 chunks", "weighted"));
  request.objective = Objective::speed;
  request.memory_limit_bytes = 1 << 30;
  request.rules.recompute = Recompute::where_needed;
  EXPECT_THAT(refused(request).message(), Mentions("2 chunks", "where_needed"));
  request.rules.recompute = Recompute::none;
  request.memory_limit_bytes.reset();
  request.rules.shape.microbatches = 4;
  EXPECT_THAT(refused(request).message(), Mentions("4 microbatches", "3 ranks", "3 or 6"));
}

TEST(PipelineRequest, ActiveMicrobatchesBelongToInterleaved) {
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::interleaved);
  request.rules.shape.active_microbatches = 0;
  EXPECT_THAT(refused(request).message(), Mentions("active_microbatches 0", "4"));
  request.rules.shape.kind = ScheduleKind::one_f_one_b;
  request.rules.shape.active_microbatches = 2;
  EXPECT_THAT(refused(request).message(), Mentions("active_microbatches 2", "1f1b", "interleaved"));
  request.rules.shape.kind = ScheduleKind::interleaved;
  request.rules.shape.active_microbatches = 9;
  EXPECT_EQ(solve(request).stages[2].held, 4);
  const auto told = notes(request.rules.shape);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told.front(), Mentions("9", "4 microbatches"));
}

TEST(PipelineRequest, UnknownNamesListTheKnownOnes) {
  EXPECT_EQ(parse_schedule_kind("gpipe").status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(parse_schedule_kind("gpipe").status().message(), Mentions("'gpipe'", "simple", "1f1b", "zb_h1"));
  EXPECT_EQ(parse_objective("size").status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(parse_objective("size").status().message(), Mentions("'size'", "speed", "memory", "weighted"));
  EXPECT_EQ(parse_recompute("some").status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(parse_recompute("some").status().message(), Mentions("'some'", "none", "all", "where_needed"));
}

// ---- manual partitions ----

Status refused_cuts(const std::vector<int>& cuts, double limit = kNoLimit) {
  const auto found =
      partition_at(worked_example(), request_of(Objective::speed, ScheduleKind::one_f_one_b, {}, false, limit), cuts);
  EXPECT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
  return found.status();
}

TEST(PipelineManual, PricesGivenCuts) {
  const auto found = partition_at(worked_example(), request_of(Objective::speed, ScheduleKind::one_f_one_b, kLink), {1, 2});
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->value, 12020);
}

TEST(PipelineManual, RefusesCutsThatAreNoChain) {
  EXPECT_THAT(refused_cuts({4, 1}).message(), Mentions("unit 1 ('unit1')", "unit 4 ('unit4')", "stage 1"));
  EXPECT_THAT(refused_cuts({2, 2}).message(), Mentions("unit 2 ('unit2')", "stage 1"));
  EXPECT_THAT(refused_cuts({0, 2}).message(), Mentions("unit 0", "'unit1'", "unit 5 ('unit5')"));
  EXPECT_THAT(refused_cuts({2, 6}).message(), Mentions("unit 6", "unit 5 ('unit5')"));
  EXPECT_THAT(refused_cuts({2}).message(), Mentions("1 cuts", "2 stages", "3"));
  EXPECT_THAT(refused_cuts({1, 4}, 1000).message(), Mentions("stage 0", "'unit0'", "1000"));
}

TEST(PipelineManual, FindsUnitsByName) {
  const std::vector<std::string> units{"stem", "block1", "block2", "head"};
  EXPECT_EQ(*find_unit(units, "block2"), 2);
  EXPECT_THAT(*find_cuts(units, {"block1", "3"}), ElementsAre(1, 3));
  EXPECT_EQ(find_unit(units, "blok1").status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(find_unit(units, "blok1").status().message(), Mentions("'blok1'", "'block1'"));
  EXPECT_EQ(find_cuts(units, {"block1.conv2"}).status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(find_cuts(units, {"block1.conv2"}).status().message(), Mentions("'block1.conv2'", "inside", "'block1'"));
}

TEST(PipelineManual, AssignsUnitsToStages) {
  const std::vector<std::string> units{"stem", "block1", "block2", "head"};
  EXPECT_THAT(*assign_units(units, {{"head", 1}}, 2, 0), ElementsAre(3));
  EXPECT_THAT(*assign_units(units, {{"stem", 0}, {"head", 2}}, 3, 1), ElementsAre(1, 3));
  const auto refused_units = [&](const std::vector<std::pair<std::string, int>>& assignments, int stages,
                                 std::optional<int> default_stage) {
    const auto found = assign_units(units, assignments, stages, default_stage);
    EXPECT_EQ(found.status().code(), StatusCode::invalid_argument);
    return found.status().message();
  };
  EXPECT_THAT(refused_units({{"block1", 1}}, 2, 0), Mentions("'block2'", "stage 0", "'block1'", "stage 1"));
  EXPECT_THAT(refused_units({{"head", 2}}, 3, 0), Mentions("stage 1", "'head'", "stage 2"));
  EXPECT_THAT(refused_units({}, 2, 0), Mentions("stage 1", "'head'"));
  EXPECT_THAT(refused_units({}, 2, 1), Mentions("stage 0", "'stem'"));
  EXPECT_THAT(refused_units({{"stem", 0}}, 2, std::nullopt), Mentions("'block1'", "default_partition"));
  EXPECT_THAT(refused_units({{"stem", 2}}, 2, 0), Mentions("stage 2", "'stem'", "1"));
  EXPECT_THAT(refused_units({}, 2, 5), Mentions("stage 5", "default_partition"));
  EXPECT_THAT(refused_units({{"hed", 1}}, 2, 0), Mentions("'hed'", "'head'"));
}

// ---- the file ----

TEST(PipelinePartitionFile, GivesBackWhatWasWritten) {
  Profile profile = worked_example();
  profile.model = "six";
  PartitionRequest request = request_of(Objective::speed, ScheduleKind::interleaved, kLink);
  request.rules.shape.active_microbatches = 2;
  request.rules.recompute = Recompute::where_needed;
  request.memory_limit_bytes = 650000;
  const Partition found = solve(request, profile);
  const std::string text = to_json(profile, request, found);
  EXPECT_EQ(text, to_json(profile, request, solve(request, profile)));
  const auto file = parse_partition(text, "six.json");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->model, "six");
  EXPECT_EQ(file->shape, request.rules.shape);
  EXPECT_EQ(file->units, profile.unit_names());
  EXPECT_EQ(file->cuts, found.cuts());
  EXPECT_EQ(file->recompute, Recompute::where_needed);
  EXPECT_EQ(file->recomputes, found.recomputes());
  EXPECT_THAT(file->recomputes, Contains(true));
  EXPECT_THAT(file->recomputes, Contains(false));
}

TEST(PipelinePartitionFile, NamesTheFieldThatIsWrong) {
  const std::string text = to_json(worked_example(), request_of(Objective::speed, ScheduleKind::one_f_one_b),
                                   solve(request_of(Objective::speed, ScheduleKind::one_f_one_b)));
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const auto at = other.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    other.replace(at, from.size(), to);
    const auto file = parse_partition(other, "p.json");
    EXPECT_EQ(file.status().code(), StatusCode::invalid_argument);
    return file.status().message();
  };
  EXPECT_THAT(changed("\"version\": 1", "\"version\": 2"), Mentions("p.json", "version", "2"));
  EXPECT_THAT(changed("\"1f1b\"", "\"2f2b\""), Mentions("p.json", "pipeline", "'2f2b'"));
  EXPECT_THAT(changed("\"partitions\": 3", "\"partitions\": 4"), Mentions("p.json", "2 cuts", "4"));
  EXPECT_THAT(changed("\"partitions\": 3", "\"partitions\": -3"), Mentions("p.json", "partitions"));
  EXPECT_THAT(changed("\"microbatches\"", "\"macrobatches\""), Mentions("p.json", "microbatches", "missing"));
  EXPECT_THAT(changed("\"cuts\": [\n  \"unit1\"", "\"cuts\": [\n  \"unit9\""), Mentions("p.json", "cuts", "'unit9'"));
  EXPECT_THAT(changed("\"cuts\": [\n  \"unit1\"", "\"cuts\": [\n  \"unit5\""), Mentions("p.json", "'unit4'", "'unit5'"));
  EXPECT_THAT(changed("\"cuts\": [\n  \"unit1\"", "\"cuts\": [\n  7"), Mentions("p.json", "cuts"));
  EXPECT_THAT(changed("\"units\": [\n  \"unit0\"", "\"units\": [\n  \"unit1\""), Mentions("p.json", "units"));
  EXPECT_THAT(changed("\"recompute\": \"none\"", "\"recompute\": \"some\""), Mentions("p.json", "recompute", "'some'"));
  EXPECT_THAT(changed("\"recomputes\": false", "\"recomputes\": 0"), Mentions("p.json", "stages", "recomputes"));
  EXPECT_THAT(changed("\"stages\": [", "\"stages\": [{},"), Mentions("p.json", "stages", "4", "3"));
  EXPECT_THAT(changed("\"model\":", "\"model\""), Mentions("p.json", "model"));
  EXPECT_EQ(read_partition("/no/such/file").status().code(), StatusCode::system_error);
}

}  // namespace
}  // namespace shoal::pipeline
