#include "src/pipeline/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/json_file.h"
#include "src/pipeline/names.h"

namespace shoal::pipeline {
namespace {

/// Keys of SageMaker's library for what this one does not have.
constexpr std::array<std::string_view, 18> kUnsupportedKeys{"activation_loading_horizon",
                                                            "bf16",
                                                            "contiguous",
                                                            "ddp_dist_backend",
                                                            "fp16",
                                                            "fp16_params",
                                                            "horovod",
                                                            "optimize_ddp",
                                                            "delayed_parameter_initialization",
                                                            "offload_activations",
                                                            "sdp_gradient_clipping",
                                                            "sdp_hierarchical_allgather",
                                                            "sdp_max_live_parameters",
                                                            "sdp_param_persistence_threshold",
                                                            "sdp_reduce_bucket_size",
                                                            "sharded_data_parallel_degree",
                                                            "shard_optimizer_state",
                                                            "skip_tracing"};

/// One configuration while it is read.
class Reader {
 public:
  Reader(const Json& object, std::string_view origin) : object_(object), origin_(origin) {}

  Result<Config> read() {
    if (Status status = check_keys(); !status.ok()) return status;
    for (const auto& [key, value] : object_.items()) {
      if (Status status = setters().at(find(key)).second(value); !status.ok()) return status;
    }
    if (!has("partitions") && !has("pipeline_parallel_degree")) return error("partitions is missing");
    if (has("partitions") && has("pipeline_parallel_degree") && object_["partitions"] != object_["pipeline_parallel_degree"]) {
      return error("partitions and pipeline_parallel_degree are the same setting and have different values");
    }
    if (Status status = check_combinations(); !status.ok()) return status;
    return config_;
  }

 private:
  using Setter = std::function<Status(const Json&)>;

  [[nodiscard]] Status error(const std::string& what) const { return invalid(fmt::format("{}: {}", origin_, what)); }
  [[nodiscard]] bool has(std::string_view key) const { return object_.contains(key); }

  Setter integer(std::string_view key, std::int64_t low, std::int64_t high, const std::function<void(std::int64_t)>& set) {
    return [=, this](const Json& value) {
      const bool fits = value.is_number_integer() && value >= low && value <= high;
      if (!fits) return error(fmt::format("{} is {}, not a whole number from {} to {}", key, value.dump(), low, high));
      set(value.get<std::int64_t>());
      return Status();
    };
  }
  Setter boolean(std::string_view key, const std::function<Status(bool)>& set) {
    return [=, this](const Json& value) {
      if (!value.is_boolean()) return error(fmt::format("{} is {}, not true or false", key, value.dump()));
      return set(value.get<bool>());
    };
  }
  /// `parse` gives a value or an error that says what exists.
  template <typename Value>
  Setter named(std::string_view key, Result<Value> (*parse)(std::string_view), Value& target) {
    return [=, this, &target](const Json& value) {
      if (!value.is_string()) return error(fmt::format("{} is {}, not a string", key, value.dump()));
      const auto parsed = parse(value.get<std::string>());
      if (!parsed.ok()) return error(fmt::format("{}: {}", key, parsed.status().message()));
      target = *parsed;
      return Status();
    };
  }

  /// Every key, with what it sets.
  const std::vector<std::pair<std::string, Setter>>& setters() {
    if (!setters_.empty()) return setters_;
    constexpr std::int64_t kMany = 1 << 20;
    const auto into = [](int& target) { return [&target](std::int64_t value) { target = static_cast<int>(value); }; };
    const auto partitions = into(config_.partitions);
    setters_ = {
        {"partitions", integer("partitions", 1, kMany, partitions)},
        {"pipeline_parallel_degree", integer("pipeline_parallel_degree", 1, kMany, partitions)},
        {"microbatches", integer("microbatches", 1, kMany, into(config_.microbatches))},
        {"pipeline", named("pipeline", parse_schedule_kind, config_.pipeline)},
        {"chunks", integer("chunks", 1, kMany, into(config_.chunks))},
        {"active_microbatches", integer("active_microbatches", 1, kMany,
                                        [this](std::int64_t value) { config_.active_microbatches = static_cast<int>(value); })},
        {"optimize", named("optimize", parse_objective, config_.optimize)},
        {"memory_weight",
         [this](const Json& value) {
           if (!value.is_number() || !(value >= 0 && value <= 1)) {
             return error(fmt::format("memory_weight is {}, not a number from 0 to 1", value.dump()));
           }
           config_.memory_weight = value.get<double>();
           return Status();
         }},
        {"memory_limit_bytes", integer("memory_limit_bytes", 1, std::int64_t{1} << 60,
                                       [this](std::int64_t value) { config_.memory_limit_bytes = value; })},
        {"recompute", named("recompute", parse_recompute, config_.recompute)},
        {"recompute_units", [this](const Json& value) { return set_recompute_units(value); }},
        {"batch_norm", named("batch_norm", parse_batch_norm, config_.batch_norm)},
        {"auto_partition", boolean("auto_partition", [this](bool value) { return config_.auto_partition = value, Status(); })},
        {"default_partition", integer("default_partition", 0, kMany,
                                      [this](std::int64_t value) { config_.default_partition = static_cast<int>(value); })},
        {"placement_strategy", named("placement_strategy", parse_placement, config_.placement)},
        {"ddp", boolean("ddp", [this](bool value) { return config_.ddp = value, Status(); })},
        {"tensor_parallel_degree", integer("tensor_parallel_degree", 1, kMany, into(config_.tensor_parallel_degree))},
        {"prescaled_batch",
         boolean("prescaled_batch",
                 [this](bool value) {
                   return value ? Status()
                                : Status(StatusCode::unsupported,
                                         fmt::format("{}: prescaled_batch false is not supported: the ranks that share a layer "
                                                     "get the same images",
                                                     origin_));
                 })},
        {"deterministic_server", boolean("deterministic_server", [](bool) { return Status(); })},  // orders are always static
    };
    return setters_;
  }
  Status set_recompute_units(const Json& value) {
    const bool is_list = value.is_array() && std::ranges::all_of(value, [](const Json& each) { return each.is_string(); });
    if (is_list) {
      config_.recompute_units = {.list = value.get<std::vector<std::string>>()};
      return {};
    }
    if (!value.is_string())
      return error(fmt::format("recompute_units is {}, not a string or an array of strings", value.dump()));
    const auto parsed = parse_recompute_units(value.get<std::string>());
    if (!parsed.ok()) return error(fmt::format("recompute_units: {}", parsed.status().message()));
    config_.recompute_units = *parsed;
    return {};
  }
  std::size_t find(std::string_view key) {
    const auto found = std::ranges::find(setters(), key, [](const auto& entry) { return std::string_view(entry.first); });
    return static_cast<std::size_t>(found - setters().begin());
  }

  Status check_keys() {
    std::string unsupported;
    for (const auto& [key, value] : object_.items()) {
      if (find(key) < setters().size()) continue;
      if (std::ranges::find(kUnsupportedKeys, key) != kUnsupportedKeys.end()) {
        unsupported += fmt::format("{}{}", unsupported.empty() ? "" : ", ", key);
        continue;
      }
      std::vector<std::string> names;
      for (const auto& entry : setters()) names.push_back(entry.first);
      return error(fmt::format("unknown key '{}'; the nearest are {}", key, nearest_names(key, names)));
    }
    if (unsupported.empty()) return {};
    return {StatusCode::unsupported, fmt::format("{}: not supported here: {}", origin_, unsupported)};
  }

  [[nodiscard]] Status check_combinations() const {
    if (config_.auto_partition && config_.default_partition) {
      return error("default_partition needs auto_partition false, where it takes the units that nobody assigned");
    }
    if (!config_.auto_partition && !config_.default_partition) {
      return error("auto_partition false needs default_partition: the stage of the units that nobody assigned");
    }
    if (config_.default_partition.value_or(0) >= config_.partitions) {
      return error(fmt::format("default_partition is {}, from 0 to {} with {} partitions", *config_.default_partition,
                               config_.partitions - 1, config_.partitions));
    }
    if (Status status = check_together(config_.recompute, config_.recompute_units); !status.ok())
      return error(status.message());
    if (Status status = check(config_.shape()); !status.ok()) return error(status.message());
    return {};
  }

  const Json& object_;
  std::string_view origin_;
  Config config_;
  std::vector<std::pair<std::string, Setter>> setters_;
};

}  // namespace

PartitionRequest Config::request(CostRules rules) const {
  PartitionRequest request;
  rules.shape = shape();
  rules.recompute = recompute;
  rules.recompute_units = recompute_units;
  request.rules = rules;
  request.objective = memory_weight ? Objective::weighted : optimize;
  request.memory_weight = memory_weight.value_or(0);
  request.memory_limit_bytes = memory_limit_bytes;
  return request;
}

Result<Config> parse_config(std::string_view json, std::string_view origin) {
  const auto object = parse_object(json, origin, "configuration");
  if (!object.ok()) return object.status();
  return Reader(*object, origin).read();
}

Result<Config> read_config(const std::string& path) {
  const auto text = read_text(path, "configuration");
  if (!text.ok()) return text.status();
  return parse_config(*text, path);
}

}  // namespace shoal::pipeline
