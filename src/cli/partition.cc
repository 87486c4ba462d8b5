// `shoal partition`: cuts a profiled model into the stages of a pipeline.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/pipeline_options.h"
#include "src/cli/schedule_options.h"
#include "src/pipeline/partition_file.h"
#include "src/pipeline/report.h"

namespace shoal {
namespace {

using Json = nlohmann::ordered_json;

/// A whole number without a decimal point where `value` is one.
Json number(double value) {
  constexpr double kExactWholeNumbers = 9e15;
  if (value == std::floor(value) && value < kExactWholeNumbers) return static_cast<std::int64_t>(value);
  return value;
}

Json partition_json(const pipeline::Profile& profile, const pipeline::PartitionRequest& request,
                    const pipeline::Partition& partition, const pipeline::Prediction& prediction) {
  Json object{{"cuts", partition.cuts()},
              {"cut_units", Json::array()},
              {"objective", to_string(partition.objective)},
              {"value", number(partition.value)},
              {"stage_us", Json::array()},
              {"stage_compute_us", Json::array()},
              {"stage_bytes", Json::array()},
              {"stage_held", Json::array()},
              {"stage_recomputes", partition.recomputes()},
              {"stage_recomputed_units", partition.recomputed_units(profile.unit_names())},
              {"cut_bytes", Json::array()},
              {"step_us", number(pipeline::microseconds(prediction.replay.step_ps))},
              {"bubble", prediction.replay.bubble()},
              {"notes", notes(request.rules.shape)}};
  for (const pipeline::Stage& stage : partition.stages) {
    if (stage.first > 0) {
      object["cut_units"].push_back(profile.units[static_cast<std::size_t>(stage.first)].name);
      object["cut_bytes"].push_back(stage.received_bytes);
    }
    object["stage_us"].push_back(number(stage.time_us));
    object["stage_compute_us"].push_back(number(stage.compute_us));
    object["stage_bytes"].push_back(stage.bytes);
    object["stage_held"].push_back(stage.held);
  }
  return object;
}

Status run_partition(const std::string& path, const PipelineOptions& options, const std::string& output, bool json) {
  const auto request = options.request();
  if (!request.ok()) return request.status();
  const auto profile = pipeline::read_profile(path);
  if (!profile.ok()) return profile.status();
  const auto partition = options.partition(*profile);
  if (!partition.ok()) return partition.status();
  const auto prediction = pipeline::predict(request->rules.shape, partition->times);
  if (!prediction.ok()) return prediction.status();
  if (!output.empty()) {
    if (Status status = write_output(output, pipeline::to_json(*profile, *request, *partition)); !status.ok()) return status;
  }
  if (json) {
    fmt::print(
        "{}\n",
        partition_json(*profile, *request, *partition, *prediction).dump(-1, ' ', false, Json::error_handler_t::replace));
    return {};
  }
  fmt::print("{}", pipeline::partition_table(*profile, *request, *partition, *prediction));
  for (const std::string& note : notes(request->rules.shape)) fmt::print("note: {}\n", note);
  return {};
}

}  // namespace

void add_partition_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "partition", "Cuts a model into the stages of a pipeline: shoal partition profile.json --partitions 2 --microbatches 8");
  const auto options = std::make_shared<PipelineOptions>();
  const auto profile = std::make_shared<std::string>();
  const auto output = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  command->add_option("profile", *profile, "JSON file with the costs of the model's units")->required();
  options->add_shape_to(*command);
  options->add_partition_to(*command);
  command->add_option("--output,-o", *output, "partition file to write");
  command->add_flag("--json", *json, "print one JSON object instead of a table");
  command->callback([=] {
    const Status status = run_partition(*profile, *options, *output, *json);
    if (!status.ok()) *exit_status = report_error("partition", status);
  });
}

}  // namespace shoal
