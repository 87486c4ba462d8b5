// The settings of shoal_train's pipelines: options, files, what the ranks agree on, and what they refuse.
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/train/pipeline/exchange.h"
#include "bench/train/pipeline/plan.h"
#include "bench/train/pipeline/settings.h"
#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/partition/text_of_rank_0.h"

namespace shoal::train {
namespace {

using parallel::text_of_rank_0;
using parallel::pipeline_testing::check;
using parallel::pipeline_testing::Folder;
using parallel::pipeline_testing::run_ranks;
using shoal::testing::mentions_all;

/// make_settings() with a configuration file of this text; "" = none.
Result<PipelineSettings> settings_of(PipelineChoices choices, const std::string& parallel, const std::string& partition = "") {
  if (!parallel.empty()) choices.parallel = "smp.json";
  if (!partition.empty()) choices.partition = "cuts.json";
  return make_settings(choices, {.parallel = parallel, .partition = partition, .profile = ""});
}

void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& facts) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_TRUE(mentions_all(status.message(), facts)) << status.message();
}

constexpr const char* kCuts =
    R"({"version": 1, "model": "net", "pipeline": "simple", "partitions": 2, "chunks": 1, "microbatches": 4,
        "units": ["a", "b", "c"], "cuts": ["b"]})";

TEST(PipelineSettings, OptionsAndFileComplement) {
  PipelineChoices choices;
  choices.microbatches = 8;
  const auto settings = settings_of(choices, R"({"partitions": 4, "pipeline": "1f1b", "placement_strategy": "spread"})");
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(settings->config.partitions, 4);
  EXPECT_EQ(settings->config.microbatches, 8);
  EXPECT_EQ(settings->config.pipeline, pipeline::ScheduleKind::one_f_one_b);
  EXPECT_EQ(settings->config.placement, *pipeline::parse_placement("TPD"));
}

TEST(PipelineSettings, PartitionFileFillsIn) {
  PipelineChoices choices;
  choices.pipeline = "1f1b";
  const auto settings = settings_of(choices, "", kCuts);
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_EQ(settings->config.pipeline, pipeline::ScheduleKind::one_f_one_b);
  EXPECT_EQ(settings->config.partitions, 2);
  EXPECT_EQ(settings->config.microbatches, 4);
  EXPECT_EQ(settings->partition->cuts, std::vector<int>{1});
}

TEST(PipelineSettings, FileChoosesStagesThatRecompute) {
  std::string cuts = kCuts;
  cuts.replace(cuts.rfind('}'), 1,
               R"(, "recompute": "where_needed", "stages": [{"recomputes": true}, {"recomputes": false}]})");
  const auto chosen = settings_of({}, "", cuts);
  ASSERT_TRUE(chosen.ok()) << chosen.status().to_string();
  EXPECT_EQ(chosen->config.recompute, pipeline::Recompute::where_needed);
  EXPECT_EQ(chosen->partition->recomputes, (std::vector<bool>{true, false}));
  PipelineChoices choices;
  choices.recompute = "all";
  const auto given = settings_of(choices, "", cuts);
  ASSERT_TRUE(given.ok()) << given.status().to_string();
  EXPECT_EQ(given->config.recompute, pipeline::Recompute::all);
  EXPECT_TRUE(given->partition->recomputes.empty());
}

TEST(PipelineSettings, FileListsUnitsThatRecompute) {
  std::string cuts = kCuts;
  cuts.replace(cuts.rfind('}'), 1, R"(, "recompute": "none", "recompute_units": ["a", "b..c"]})");
  const auto units_of = [&](const PipelineChoices& choices, const std::string& parallel = "") {
    const auto settings = settings_of(choices, parallel, cuts);
    EXPECT_TRUE(settings.ok()) << settings.status().to_string();
    return settings.ok() ? to_string(settings->config.recompute_units) : "";
  };
  EXPECT_EQ(units_of({}), "a,b..c");
  PipelineChoices choices;
  choices.recompute_units = "all";
  EXPECT_EQ(units_of(choices), "all");
  choices.recompute_units.reset();
  choices.recompute = "all";  // of stages, instead
  EXPECT_EQ(units_of(choices), "none");
  EXPECT_EQ(units_of({}, R"({"recompute_units": "where_needed", "memory_limit_bytes": 9})"), "where_needed");
}

TEST(PipelineSettings, RecomputationNeedsAPipeline) {
  PipelineChoices choices;
  EXPECT_TRUE(choices.check().ok());
  choices.recompute_units = "all";
  expect_refused(choices.check(), StatusCode::invalid_argument, {"--recompute-units", "--partitions"});
  choices.partitions = 2;
  EXPECT_TRUE(choices.check().ok());
  choices = {};
  choices.recompute = "all";
  expect_refused(choices.check(), StatusCode::invalid_argument, {"--recompute", "--partitions"});
}

TEST(PipelineSettings, BadSettingsAreNamed) {
  PipelineChoices choices;
  choices.partitions = 2;
  const auto refused = [&](const std::string& file, const std::vector<std::string>& facts,
                           StatusCode code = StatusCode::invalid_argument) {
    expect_refused(settings_of(choices, file).status(), code, facts);
  };
  refused(R"({"partitions": 4})", {"smp.json", "partitions", "4", "--partitions", "2"});
  refused(R"({"microbatchs": 4})", {"smp.json", "microbatchs", "microbatches"});
  refused(R"({"pipeline": "fastest"})", {"smp.json", "pipeline", "fastest", "1f1b"});
  refused(R"({"placement_strategy": "DXT"})", {"DXT", "cluster", "spread"});
  refused(R"({"auto_partition": false, "default_partition": 0})", {"auto_partition", "--partition"});
  refused(R"({"batch_norm": "batch"})", {"batch_norm", "'batch'", "microbatch", "deferred"});
  refused(R"({"recompute": "some"})", {"recompute", "some", "where_needed"});
  refused(R"({"recompute_units": 5})", {"smp.json", "recompute_units", "5"});
  refused(R"({"recompute_units": "a", "recompute": "all"})", {"smp.json", "recompute is all", "recompute_units is a"});
  refused(R"({"fp16": true, "offload_activations": true})", {"fp16", "offload_activations"}, StatusCode::unsupported);
  refused(R"({"tensor_parallel_degree": 0})", {"tensor_parallel_degree", "0"});
  refused(R"({"microbatches")", {"smp.json"});
  choices.active_microbatches = 0;
  refused("", {"active_microbatches", "0"});
  choices.active_microbatches = 3;
  choices.pipeline = "1f1b";
  refused("", {"active_microbatches", "1f1b"});
  choices.active_microbatches.reset();
  choices.partitions = 3;
  expect_refused(settings_of(choices, "", kCuts).status(), StatusCode::invalid_argument, {"cuts.json", "2", "3"});
  choices.partitions.reset();
  expect_refused(settings_of(choices, R"({"microbatches": 2})").status(), StatusCode::invalid_argument, {"partitions"});
}

TEST(PipelineSettings, FilesMustExist) {
  PipelineChoices choices;
  choices.profile = "/no/such/profile.json";
  expect_refused(read_files(choices).status(), StatusCode::system_error, {"/no/such/profile.json"});
}

/// A job over the ranks of `communicator`, which it takes the place of.
Job job_of(Communicator& communicator) {
  Job job;
  std::vector<int> ranks;
  for (int rank = 0; rank < communicator.size(); ++rank) ranks.push_back(rank);
  job.control = *communicator.group(ranks);
  job.places = ranks;
  job.timeout = std::chrono::seconds(60);
  return job;
}

void check_refused(const Status& status, StatusCode code, const std::vector<std::string>& facts) {
  check(status.code() == code, "code of " + status.to_string());
  check(mentions_all(status.message(), facts), "\"" + facts.front() + "\" and more in: " + status.message());
}

TEST(PipelineAgreement, FirstDifferenceIsNamedEverywhere) {
  run_ranks(3, [](Communicator& communicator) {
    const Job job = job_of(communicator);
    nlohmann::ordered_json settings{{"partitions", 2}, {"microbatches", job.rank() == 2 ? 8 : 4}, {"seed", job.rank()}};
    check_refused(agree_on_settings(job, settings, {}), StatusCode::mismatch, {"seed", "0 on rank 0", "1 on rank 1"});
    settings["seed"] = 1;
    check_refused(agree_on_settings(job, settings, {}), StatusCode::mismatch, {"microbatches", "4 on rank 0", "8 on rank 2"});
    settings["microbatches"] = 4;
    check(agree_on_settings(job, settings, {}).ok(), "equal settings");
    if (job.rank() == 1) settings["clip_norm"] = 0.5;
    check_refused(agree_on_settings(job, settings, {}), StatusCode::mismatch, {"clip_norm", "rank 0", "0.5 on rank 1"});
    const Status refusal = job.rank() == 1 ? Status(StatusCode::unsupported, "not here") : Status();
    check_refused(agree_on_settings(job, settings, refusal), StatusCode::unsupported, {"rank 1", "not here"});
  });
}

TEST(PipelineAgreement, ErrorOfRank0ReachesAll) {
  run_ranks(2, [](Communicator& communicator) {
    const bool speaks = communicator.rank() == 0;
    const auto text = text_of_rank_0(communicator, std::string(speaks ? "cuts" : "ignored"));
    check(text.ok() && *text == "cuts", "the text of rank 0");
    const Result<std::string> failed = Status(StatusCode::system_error, "no file");
    check_refused(text_of_rank_0(communicator, speaks ? failed : Result<std::string>(std::string())).status(),
                  StatusCode::system_error, {"no file"});
  });
}

/// What make_plan() reads.
class PlanFiles {
 public:
  /// Rank 0, which reads them, writes files; the path is the same on all ranks.
  PlanFiles(const models::ModelInfo& model, const std::string& folder, int rank) : folder_(folder), writes_(rank == 0) {
    images_.name = "images";
    images_.channels = 3;
    images_.height = images_.width = 32;
    const auto chain = parallel::Chain::of(model.make(3, images_.classes)->parts());
    profile_.model = model.name;
    for (const parallel::Part& part : chain->units()) {
      pipeline::Unit unit;
      unit.name = part.name;
      unit.forward_us = 100;
      unit.backward_us = 200;
      unit.stash_bytes = unit.output_bytes = 1000;
      for (const auto& [name, parameter] : part.parameters())
        unit.parameter_bytes += static_cast<std::int64_t>(parameter.nbytes());
      profile_.units.push_back(unit);
    }
  }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    if (writes_) std::ofstream(path) << text;
    return path;
  }
  [[nodiscard]] const data::Dataset& images() const { return images_; }
  [[nodiscard]] const pipeline::Profile& profile() const { return profile_; }

 private:
  std::string folder_;
  bool writes_;
  data::Dataset images_;
  pipeline::Profile profile_;
};

TEST(PipelinePlan, IsEqualOnAllRanks) {
  const Folder folder;
  run_ranks(4, [&](Communicator& communicator) {
    const Job job = job_of(communicator);
    const models::ModelInfo model = *models::find_model("vgg11");
    const PlanFiles files(model, folder.path(), job.rank());
    TrainOptions options;
    options.model = model.name;
    options.parallel.profile = files.write("p.json", pipeline::to_json(files.profile()));
    options.parallel.partitions = 2;
    options.parallel.microbatches = 4;
    options.parallel.ddp = true;
    options.parallel.placement_strategy = "spread";
    const auto plan = make_plan(job, model, files.images(), options);
    check(plan.ok(), plan.status().to_string());
    check(plan->layout.position(job.rank()) == pipeline::Position{job.rank() % 2, job.rank() / 2, 0}, "spread placement");
    check(plan->partition.cuts() == pipeline::partition(files.profile(), plan->request)->cuts(), "the best cuts");
    check(plan->request.rules.optimizer_states == 1, "momentum is a state");
    const pipeline::Link& measured = plan->request.rules.link;
    check(measured.latency_us > 0 && measured.bytes_per_us.value_or(0) > 0, "the link is measured");
    options.parallel.optimize = "speed";
    options.parallel.link_latency_us = 7;
    options.parallel.link_bytes_per_us = 0.25;
    // Of the first units only the third has a small output.
    pipeline::Profile small = files.profile();
    small.units[2].output_bytes = 1;
    options.parallel.profile = files.write("small.json", pipeline::to_json(small));
    const auto given = make_plan(job, model, files.images(), options);
    check(given.ok(), given.status().to_string());
    const pipeline::Link& link = given->request.rules.link;
    check(link.latency_us == 7 && link.bytes_per_us == 0.25, "the link is given");
    check(given->partition.cuts() == std::vector<int>{3}, "the cut is where little crosses");
    options.parallel.link_bytes_per_us.reset();
    const auto half = make_plan(job, model, files.images(), options);
    check(half.ok() && half->request.rules.link.latency_us == 7 && half->request.rules.link.bytes_per_us.value_or(0) > 0,
          "the rate is measured");
    check(plan->stages_at(1) == std::vector<int>{1}, "stages");
  });
}

TEST(PipelinePlan, BadInputIsRefusedOnAllRanks) {
  const Folder folder;
  run_ranks(2, [&](Communicator& communicator) {
    const Job job = job_of(communicator);
    const models::ModelInfo model = *models::find_model("vgg11");
    const PlanFiles files(model, folder.path(), job.rank());
    TrainOptions good;
    good.model = model.name;
    good.parallel.profile = files.write("p.json", pipeline::to_json(files.profile()));
    good.parallel.partitions = 2;
    const auto refused = [&](const auto& change, const std::vector<std::string>& facts,
                             StatusCode code = StatusCode::invalid_argument) {
      TrainOptions options = good;
      change(options);
      check_refused(make_plan(job, model, files.images(), options).status(), code, facts);
    };
    refused([](auto& o) { o.parallel.partitions = 1; }, {"2 ranks", "1", "ddp"});
    refused([](auto& o) { o.parallel.partitions = 3; }, {"3", "2"});
    refused([](auto& o) { o.parallel.tensor_parallel_degree = 2; }, {"tensor_parallel_degree 2", "2 ranks"});
    refused([](auto& o) { o.parallel.memory_limit_bytes = 10; }, {"10"});
    refused([](auto& o) { o.parallel.recompute = "where_needed"; }, {"where_needed", "limit"});
    refused([&](auto& o) { o.parallel.recompute = job.rank() == 0 ? "none" : "all"; }, {"recompute", "none", "all"},
            StatusCode::mismatch);
    refused([](auto& o) { o.parallel.recompute_units = "conv1_1,conv9_9"; }, {"recompute_units", "conv9_9", "nearest"});
    refused([](auto& o) { o.parallel.recompute_units = "99"; }, {"recompute_units", "unit 99", "outside"});
    refused([](auto& o) { o.parallel.recompute_units = "where_needed"; }, {"units", "where_needed", "limit"});
    refused([](auto& o) { o.parallel.recompute = o.parallel.recompute_units = "all"; }, {"recompute is all", "one of both"});
    refused([&](auto& o) { o.parallel.recompute_units = job.rank() == 0 ? "none" : "all"; }, {"recompute_units", "none", "all"},
            StatusCode::mismatch);
    refused([&](auto& o) { o.parallel.link_latency_us = job.rank(); }, {"link_latency_us", "rank 1"}, StatusCode::mismatch);
    refused([](auto& o) { o.parallel.link_bytes_per_us = -1; }, {"link", "-1"});
    refused([](auto& o) { o.accumulate = 2; }, {"--accumulate", "--microbatches"});
    refused([](auto& o) { o.parallel.full_checkpoint = true; }, {"--full-checkpoint", "--checkpoint"});
    refused([&](auto& o) { o.batch = 8 + job.rank(); }, {"batch", "8 on rank 0", "9 on rank 1"}, StatusCode::mismatch);
    refused([&](auto& o) { o.parallel.microbatches = 2 + job.rank(); }, {"microbatches", "rank 1"}, StatusCode::mismatch);
    refused(
        [&](auto& o) {
          if (job.rank() == 1) o.parallel.pipeline = "1f1b";
        },
        {"pipeline", "interleaved", "1f1b"}, StatusCode::mismatch);
    pipeline::Profile other = files.profile();
    other.units[1].parameter_bytes += 4;
    refused([&](auto& o) { o.parallel.profile = files.write("bytes.json", pipeline::to_json(other)); },
            {"bytes.json", other.units[1].name, "parameter_bytes"});
    pipeline::Profile of_fashion = files.profile();
    of_fashion.units[0].output_shape = {4, 64, 28, 28};
    refused([&](auto& o) { o.parallel.profile = files.write("images.json", pipeline::to_json(of_fashion)); },
            {"images.json", "conv1_1", "64 x 28 x 28", "64 x"});
    refused([&](auto& o) { o.parallel.profile = files.write("broken.json", "{\"units\": ["); }, {"broken.json"});
    refused([](auto& o) { o.parallel.partition = "/no/such/cuts.json"; }, {"/no/such/cuts.json"}, StatusCode::system_error);
    refused([&](auto& o) { o.parallel.partition = files.write("cuts.json", kCuts); }, {"cuts.json", "net", "vgg11"});
    pipeline::Profile older = files.profile();
    older.microbatch = 99;
    older.threads = 77;
    TrainOptions warned = good;
    warned.parallel.profile = files.write("older.json", pipeline::to_json(older));
    ::testing::internal::CaptureStderr();
    const bool is_plan = make_plan(job, model, files.images(), warned).ok();
    const std::string warnings = ::testing::internal::GetCapturedStderr();
    check(is_plan, "another microbatch is no error");
    check(job.rank() > 0 || mentions_all(warnings, {"older.json", "microbatch", "99", "32", "threads", "77"}), warnings);
    TrainOptions many = good;
    many.parallel.microbatches = many.batch + 1;
    check(make_plan(job, model, files.images(), many).ok(), "more microbatches than images are one each");
    // At 8 x 8 pixels the maps of conv4_1 have one.
    data::Dataset small = files.images();
    small.height = small.width = 8;
    for (const bool reads : {true, false}) {
      for (const char* const statistics : {"microbatch", "deferred"}) {
        TrainOptions few = good;
        few.parallel.batch_norm = statistics;
        if (!reads) few.parallel.profile.clear();
        few.batch = 7;
        few.parallel.microbatches = 4;
        check_refused(make_plan(job, model, small, few).status(), StatusCode::invalid_argument,
                      {"unit 'conv4_1'", "1 image", "m at most 3", "7 images"});
      }
    }
    TrainOptions whole = good;
    whole.batch = 8;
    whole.parallel.microbatches = 4;
    check(make_plan(job, model, small, whole).ok(), "two images");
    small.labels.resize(33);
    check_refused(make_plan(job, model, small, whole).status(), StatusCode::invalid_argument,
                  {"unit 'conv4_1'", "1 image", "at the end of an epoch 1"});
    whole.steps = 4;
    check(make_plan(job, model, small, whole).ok(), "the end of an epoch is not reached");
  });
}

}  // namespace
}  // namespace shoal::train
