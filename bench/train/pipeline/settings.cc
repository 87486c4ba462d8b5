#include "bench/train/pipeline/settings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/pipeline/json_file.h"

namespace shoal::train {
namespace {

using pipeline::Json;

/// "--memory-limit-bytes" for "memory_limit_bytes".
std::string option_name(const std::string& key) {
  if (key == "placement_strategy") return "--placement";
  if (key == "tensor_parallel_degree") return "--tensor-parallel";
  std::string name = "--" + key;
  std::ranges::replace(name, '_', '-');
  return name;
}

/// The options that were given, by key.
std::vector<std::pair<std::string, Json>> given(const PipelineChoices& choices) {
  std::vector<std::pair<std::string, Json>> all;
  const auto add = [&](const char* key, const auto& value) {
    if (value.has_value()) all.emplace_back(key, *value);
  };
  add("partitions", choices.partitions);
  add("microbatches", choices.microbatches);
  add("pipeline", choices.pipeline);
  add("chunks", choices.chunks);
  add("active_microbatches", choices.active_microbatches);
  add("tensor_parallel_degree", choices.tensor_parallel_degree);
  add("optimize", choices.optimize);
  add("memory_weight", choices.memory_weight);
  add("memory_limit_bytes", choices.memory_limit_bytes);
  add("recompute", choices.recompute);
  add("recompute_units", choices.recompute_units);
  add("batch_norm", choices.batch_norm);
  add("placement_strategy", choices.placement_strategy);
  if (choices.ddp) all.emplace_back("ddp", true);
  return all;
}

/// Fills in what nobody gave.
void complete(Json& object, const pipeline::PartitionFile& file) {
  const auto add = [&](const char* key, const Json& value) {
    if (!object.contains(key)) object[key] = value;
  };
  const bool recomputes = object.contains("recompute") || object.contains("recompute_units");
  if (!object.contains("pipeline_parallel_degree")) add("partitions", file.shape.ranks);
  add("microbatches", file.shape.microbatches);
  const bool takes_schedule = !object.contains("pipeline");
  add("pipeline", pipeline::to_string(file.shape.kind));
  add("chunks", file.shape.chunks);
  if (!recomputes) {
    add("recompute", pipeline::to_string(file.recompute));
    add("recompute_units",
        file.recompute_units.list.empty() ? Json(to_string(file.recompute_units)) : Json(file.recompute_units.list));
  }
  if (takes_schedule && file.shape.active_microbatches) add("active_microbatches", *file.shape.active_microbatches);
}

Status check_partition(const pipeline::Config& config, const pipeline::PartitionFile& file, const std::string& path) {
  const int stages = config.shape().stages();
  if (file.shape.stages() == stages) return {};
  return {StatusCode::invalid_argument, path + ": has " + std::to_string(file.shape.stages()) +
                                            " stages, and the pipeline has " + std::to_string(stages) +
                                            "; set --partitions and --chunks to those of the file"};
}

}  // namespace

Status PipelineChoices::check() const {
  if (wanted()) return {};
  for (const auto& [given, option] :
       {std::pair{recompute.has_value(), "--recompute"}, {recompute_units.has_value(), "--recompute-units"}}) {
    if (given) return {StatusCode::invalid_argument, std::string(option) + " needs a pipeline: add --pipeline or --partitions"};
  }
  return {};
}

Result<PipelineFiles> read_files(const PipelineChoices& choices) {
  PipelineFiles files;
  for (const auto& [path, text, what] : {std::tuple{&choices.parallel, &files.parallel, "configuration"},
                                         std::tuple{&choices.partition, &files.partition, "partition"},
                                         std::tuple{&choices.profile, &files.profile, "profile"}}) {
    if (path->empty()) continue;
    Result<std::string> read = pipeline::read_text(*path, what);
    if (!read.ok()) return read.status();
    *text = *std::move(read);
  }
  return files;
}

Result<PipelineSettings> make_settings(const PipelineChoices& choices, const PipelineFiles& files) {
  PipelineSettings settings;
  Json object = Json::object();
  std::string origin = "options";
  if (!choices.parallel.empty()) {
    origin = choices.parallel;
    Result<Json> parsed = pipeline::parse_object(files.parallel, origin, "configuration");
    if (!parsed.ok()) return parsed.status();
    object = *std::move(parsed);
  }
  for (const auto& [key, value] : given(choices)) {
    if (object.contains(key) && object[key] != value) {
      return Status(StatusCode::invalid_argument, origin + ": " + key + " is " + object[key].dump() + ", and " +
                                                      option_name(key) + " is " + value.dump() + "; give one of them");
    }
    object[key] = value;
  }
  if (!choices.partition.empty()) {
    Result<pipeline::PartitionFile> file = pipeline::parse_partition(files.partition, choices.partition);
    if (!file.ok()) return file.status();
    const bool says_otherwise = object.contains("recompute") || object.contains("recompute_units");
    const bool chooses = file->recompute == pipeline::Recompute::where_needed && !says_otherwise;
    if (!chooses) file->recomputes.clear();
    complete(object, *file);
    settings.partition = *std::move(file);
  }
  Result<pipeline::Config> config = pipeline::parse_config(object.dump(), origin);
  if (!config.ok()) return config.status();
  settings.config = *std::move(config);
  if (!settings.partition.has_value()) {
    if (settings.config.auto_partition) return settings;
    return Status(StatusCode::invalid_argument, origin + ": auto_partition false needs --partition with the cuts");
  }
  if (Status status = check_partition(settings.config, *settings.partition, choices.partition); !status.ok()) return status;
  return settings;
}

}  // namespace shoal::train
