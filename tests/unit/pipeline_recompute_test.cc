// Units that recompute inside of stages: lists of them, what they cost, where a limit needs them, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/pipeline/manual_partition.h"
#include "src/pipeline/partition_file.h"
#include "src/pipeline/report.h"
#include "tests/mentions.h"
#include "tests/unit/pipeline_support.h"

namespace shoal::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::Mentions;

constexpr std::int64_t kPlainBytes0 = 4 * 108000 + 48000 + 4 * 112000;  // of the units 0 and 1 as a stage of `simple`

RecomputeUnits units_of(const std::string& text) {
  const auto units = parse_recompute_units(text);
  EXPECT_TRUE(units.ok()) << units.status().to_string();
  return units.ok() ? *units : RecomputeUnits{};
}

PartitionRequest request_of(const std::string& units, ScheduleKind kind = ScheduleKind::simple) {
  PartitionRequest request;
  request.rules = {shape_of(kind, 3, 4), {}, false, Recompute::none, 2, units_of(units)};
  request.objective = Objective::speed;
  return request;
}

Partition cut(const PartitionRequest& request, const std::vector<int>& cuts, const Profile& profile = worked_example()) {
  const auto found = partition_at(profile, request, cuts);
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  return found.ok() ? *found : Partition{};
}

std::vector<double> computes_of(const Partition& partition) {
  std::vector<double> us;
  for (const Stage& stage : partition.stages) us.push_back(stage.compute_us);
  return us;
}

// ---- lists ----

TEST(PipelineRecomputeUnits, TextIsARuleOrAList) {
  EXPECT_FALSE(units_of("none").any());
  EXPECT_EQ(units_of("all").rule, Recompute::all);
  EXPECT_EQ(units_of("where_needed").rule, Recompute::where_needed);
  EXPECT_THAT(units_of("stem,block2..block4").list, ElementsAre("stem", "block2..block4"));
  for (const char* const text : {"none", "all", "where_needed", "stem,block2..block4"})
    EXPECT_EQ(to_string(units_of(text)), text);
  for (const char* const text : {"", ",", "a,", "a,,b"}) {
    const Status status = parse_recompute_units(text).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << text;
    EXPECT_THAT(status.message(), Mentions("list of units", "where_needed"));
  }
}

TEST(PipelineRecomputeUnits, ListNamesUnitsAndRuns) {
  const std::vector<std::string> units{"stem", "block.1", "block.2", "block.3", "head"};
  EXPECT_THAT(*find_runs(units, {"head", "block.1..block.2", "0"}), ElementsAre(UnitRun{0, 1}, UnitRun{1, 3}, UnitRun{4, 5}));
  EXPECT_THAT(*find_runs(units, {"1..3"}), ElementsAre(UnitRun{1, 4}));
  EXPECT_THAT(*find_runs(units, {"block.2..block.2"}), ElementsAre(UnitRun{2, 3}));
  EXPECT_EQ(to_text(units, {1, 3}), "block.1..block.2");
  EXPECT_EQ(to_text(units, {4, 5}), "head");
  const auto refused = [&](const std::string& entry) {
    const Status status = find_runs(units, {"block.2", entry}).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << entry;
    return status.message();
  };
  EXPECT_THAT(refused("haed"), Mentions("'haed'", "'head'"));
  EXPECT_THAT(refused("stem..haed"), Mentions("'haed'", "'head'"));
  EXPECT_THAT(refused("block.1.conv"), Mentions("'block.1.conv'", "inside"));
  EXPECT_THAT(refused("5"), Mentions("unit 5", "0 to 4"));
  EXPECT_THAT(refused("3..5"), Mentions("unit 5", "0 to 4"));
  EXPECT_THAT(refused("head..stem"), Mentions("'head..stem'", "before"));
  EXPECT_THAT(refused("block.1..block.3"), Mentions("'block.2'", "twice"));
}

// ---- costs ----

TEST(PipelineRecomputeUnits, UnitsKeepTheirInputsOnly) {
  const Partition plain = cut(request_of("none"), {2, 3});
  ASSERT_EQ(plain.stages[0].bytes, kPlainBytes0);
  // Unit 0 keeps its input, which is received; its output is the input of unit 1.
  const Partition first = cut(request_of("unit0"), {2, 3});
  EXPECT_EQ(first.stages[0].bytes, 4 * 108000 + 48000 + 3 * (64000 + 48000) + (64000 + 48000));
  // Unit 1 sends its output.
  const Partition second = cut(request_of("1"), {2, 3});
  EXPECT_EQ(second.stages[0].bytes, 4 * 108000 + 48000 + 3 * 64000 + (64000 + 48000));
  EXPECT_THAT(computes_of(second), ElementsAre(8700 + 1400, 1800, 8100));
  EXPECT_THAT(second.recomputes(), ElementsAre(false, false, false));
  EXPECT_THAT(second.stages[0].recomputed_units, ElementsAre(UnitRun{1, 2}));
  EXPECT_THAT(second.stages[1].recomputed_units, IsEmpty());
  EXPECT_GT(second.times.stages[0].input_ps, plain.times.stages[0].input_ps);
}

TEST(PipelineRecomputeUnits, RunKeepsOneInput) {
  const Partition apart = cut(request_of("unit3,unit4"), {2, 3});
  const Partition run = cut(request_of("unit3..unit4"), {2, 3});
  // What unit 3 gives to unit 4, and unit 4 to unit 5; then the stash of unit 3 is the most that recomputes.
  EXPECT_EQ(apart.stages[2].bytes, 4 * 56000 + 16000 + 4 * 16000 + 3 * (32000 + 8000 + 3000) + 64000);
  EXPECT_EQ(run.stages[2].bytes, 4 * 56000 + 16000 + 4 * 16000 + 3 * (8000 + 3000) + 64000 + 16000);
  EXPECT_EQ(computes_of(apart), computes_of(run));
  // A cut makes two runs of one.
  const Partition parts = cut(request_of("unit1..unit4"), {2, 3});
  EXPECT_THAT(parts.recomputed_units(worked_example().unit_names()),
              ElementsAre(ElementsAre("unit1"), ElementsAre("unit2"), ElementsAre("unit3..unit4")));
}

TEST(PipelineRecomputeUnits, WholeStageIsARunOfAllUnits) {
  PartitionRequest stages = request_of("none", ScheduleKind::interleaved);
  stages.rules.recompute = Recompute::all;
  const PartitionRequest units = request_of("unit0..unit5", ScheduleKind::interleaved);
  EXPECT_EQ(bytes_of(cut(units, {1, 4})), bytes_of(cut(stages, {1, 4})));
  EXPECT_EQ(computes_of(cut(units, {1, 4})), computes_of(cut(stages, {1, 4})));
}

TEST(PipelineRecomputeUnits, SaveMemoryOfOneMicrobatch) {
  Profile profile = worked_example();
  profile.units[4].workspace_bytes = 50000;
  const Partition plain = cut(request_of("none", ScheduleKind::one_f_one_b), {1, 2}, profile);
  const Partition all = cut(request_of("all", ScheduleKind::one_f_one_b), {1, 2}, profile);
  ASSERT_EQ(all.stages[2].held, 1);
  const std::int64_t fixed = 4 * 128000 + 2 * 48000;
  EXPECT_EQ(plain.stages[2].bytes, fixed + 32000 + 64000 + 16000 + 50000);
  // The most: the inputs of the units 3 and 4, the stash and the workspace of unit 4.
  EXPECT_EQ(all.stages[2].bytes, fixed + 16000 + 32000 + 16000 + 50000);
}

TEST(PipelineRecomputeUnits, ObjectiveCountsThem) {
  const auto solve = [](const PartitionRequest& request) {
    const auto found = partition(worked_example(), request);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : Partition{};
  };
  EXPECT_THAT(solve(request_of("none")).cuts(), ElementsAre(1, 4));
  const Partition fast = solve(request_of("unit1..unit2"));  // with the cuts 1, 4 it would be 9800 us
  EXPECT_THAT(fast.cuts(), ElementsAre(1, 3));
  EXPECT_EQ(fast.value, 8100);
  PartitionRequest memory = request_of("unit0..unit2");
  memory.objective = Objective::memory;
  EXPECT_EQ(solve(memory).value, 636000);  // 928000 without
}

// ---- where a limit needs them ----

TEST(PipelineRecomputeUnits, LimitTakesFirstUnitsThatSuffice) {
  Profile profile = worked_example();
  for (const std::size_t unit : {0U, 1U, 2U}) profile.units[unit].parameter_bytes = 0;
  PartitionRequest request = request_of("where_needed");
  const auto with_limit = [&](std::int64_t bytes) {
    request.memory_limit_bytes = bytes;
    return cut(request, {2, 3}, profile).recomputed_units({"a", "b", "c", "d", "e", "f"});
  };
  const auto bytes_with = [&](const std::string& units, std::size_t stage) {
    return cut(request_of(units), {2, 3}, profile).stages[stage].bytes;
  };
  const std::int64_t fixed2 = 4 * 56000 + 16000 + 4 * 16000;
  ASSERT_EQ(bytes_with("unit3", 2), fixed2 + 3 * (32000 + 16000 + 3000) + 64000);
  ASSERT_EQ(bytes_with("unit3,unit4", 2), fixed2 + 3 * (32000 + 8000 + 3000) + 64000);
  EXPECT_THAT(with_limit(kPlainBytes0), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(with_limit(bytes_with("unit3", 2)), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre("d")));
  EXPECT_THAT(with_limit(bytes_with("unit3,unit4", 2)), ElementsAre(IsEmpty(), IsEmpty(), ElementsAre("d", "e")));
  const std::int64_t least = bytes_with("unit3,unit4,unit5", 2);  // stage 0 needs both of its units then
  EXPECT_THAT(with_limit(least), ElementsAre(ElementsAre("a", "b"), IsEmpty(), ElementsAre("d", "e", "f")));
  request.memory_limit_bytes = least - 1;
  const Status status = partition_at(profile, request, {2, 3}).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_THAT(status.message(), Mentions("stage 2", std::to_string(least), std::to_string(least - 1)));
}

TEST(PipelineRecomputeUnits, ErrorNamesTheLeastThatUnitsCanDo) {
  PartitionRequest request = request_of("where_needed");
  request.memory_limit_bytes = 1;
  const Status status = partition(worked_example(), request).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  std::int64_t least = 0;
  for (std::int64_t limit = 400000; least == 0; limit += 500) {
    request.memory_limit_bytes = limit;
    const auto found = partition(worked_example(), request);
    if (found.ok()) least = std::ranges::max(bytes_of(*found));
  }
  EXPECT_THAT(status.message(), Mentions("whichever first units", "stage", std::to_string(least)));
  request.memory_limit_bytes = least;
  EXPECT_TRUE(partition(worked_example(), request).ok());
  --*request.memory_limit_bytes;
  EXPECT_FALSE(partition(worked_example(), request).ok());
}

// ---- files and tables ----

TEST(PipelineRecomputeUnits, FileHasWhatWasChosen) {
  const Profile profile = worked_example();
  const auto file_of = [&](const PartitionRequest& request) {
    const auto file = parse_partition(to_json(profile, request, cut(request, {2, 3})), "six.json");
    EXPECT_TRUE(file.ok()) << file.status().to_string();
    return file.ok() ? file->recompute_units : RecomputeUnits{};
  };
  EXPECT_FALSE(file_of(request_of("none")).any());
  EXPECT_EQ(file_of(request_of("all")), units_of("all"));
  EXPECT_EQ(file_of(request_of("unit1..unit3")), units_of("unit1,unit2,unit3"));
  EXPECT_EQ(file_of(request_of("3..4")), units_of("unit3..unit4"));
  PartitionRequest needed = request_of("where_needed");
  needed.memory_limit_bytes = kPlainBytes0 - 1;
  const RecomputeUnits chosen = file_of(needed);
  EXPECT_FALSE(chosen.list.empty());
  PartitionRequest again = request_of("none");
  again.rules.recompute_units = chosen;
  EXPECT_EQ(bytes_of(cut(again, {2, 3})), bytes_of(cut(needed, {2, 3})));
}

TEST(PipelineRecomputeUnits, FileNamesTheFieldThatIsWrong) {
  const PartitionRequest request = request_of("unit1");
  const std::string text = to_json(worked_example(), request, cut(request, {2, 3}));
  const std::string field = "\"recompute_units\": [\n  \"unit1\"\n ]";
  const auto changed = [&](const std::string& to) {
    std::string other = text;
    other.replace(other.find(field), field.size(), "\"recompute_units\": " + to);
    const Status status = parse_partition(other, "p.json").status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << to;
    return status.message();
  };
  ASSERT_NE(text.find(field), std::string::npos);
  EXPECT_THAT(changed(R"(["unit9"])"), Mentions("p.json", "recompute_units", "'unit9'"));
  EXPECT_THAT(changed(R"([1])"), Mentions("p.json", "recompute_units", "texts"));
  EXPECT_THAT(changed(R"("a,")"), Mentions("p.json", "recompute_units", "list of units"));
  EXPECT_THAT(changed("true"), Mentions("p.json", "recompute_units"));
}

TEST(PipelineRecomputeUnits, TableNamesThem) {
  const PartitionRequest request = request_of("unit0,unit3..unit4");
  const Partition found = cut(request, {2, 3});
  const auto prediction = predict(request.rules.shape, found.times);
  ASSERT_TRUE(prediction.ok());
  EXPECT_THAT(partition_table(worked_example(), request, found, *prediction),
              ::testing::HasSubstr("units that recompute: stage 0: unit0; stage 2: unit3..unit4\n"));
}

// ---- what is refused ----

TEST(PipelineRecomputeUnits, BadRequestsAreNamed) {
  const auto refused = [](const PartitionRequest& request) {
    const Status status = partition(worked_example(), request).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return status.message();
  };
  EXPECT_THAT(refused(request_of("unit7")), Mentions("recompute_units", "'unit7'", "'unit0'"));
  EXPECT_THAT(refused(request_of("2..6")), Mentions("recompute_units", "unit 6", "0 to 5"));
  PartitionRequest both = request_of("unit1");
  both.rules.recompute = Recompute::all;
  EXPECT_THAT(refused(both), Mentions("recompute is all", "recompute_units is unit1", "one of both"));
  EXPECT_THAT(refused(request_of("where_needed")), Mentions("units", "where_needed", "memory limit"));
  PartitionRequest chunks = request_of("where_needed", ScheduleKind::virtual_stages);
  chunks.rules.shape = shape_of(ScheduleKind::virtual_stages, 3, 6, 2);
  chunks.memory_limit_bytes = 1 << 30;
  EXPECT_THAT(refused(chunks), Mentions("2 chunks", "units", "where_needed"));
  chunks.rules.recompute_units = units_of("all");
  EXPECT_TRUE(partition(worked_example(), chunks).ok());
}

}  // namespace
}  // namespace shoal::pipeline
