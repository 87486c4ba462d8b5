#include "src/pipeline/partition_file.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "src/pipeline/error.h"
#include "src/pipeline/json_file.h"
#include "src/pipeline/manual_partition.h"

namespace shoal::pipeline {
namespace {

constexpr int kMaxCount = 1'000'000'000;

/// Reads the fields of one file; the first problem stays.
class Reader {
 public:
  Reader(const Json& object, std::string_view origin) : object_(object), origin_(origin) {}

  std::string text(const char* key) {
    const auto value = object_.find(key);
    if (value != object_.end() && value->is_string()) return value->get<std::string>();
    fail(key, value == object_.end(), "a text");
    return "";
  }

  int count(const char* key) {
    const auto value = object_.find(key);
    const bool valid = value != object_.end() && value->is_number_integer() && *value >= 0 && *value <= kMaxCount;
    if (valid) return value->get<int>();
    fail(key, value == object_.end(), fmt::format("a whole number from 0 to {}", kMaxCount));
    return 0;
  }

  std::vector<std::string> texts(const char* key) {
    const auto value = object_.find(key);
    bool valid = value != object_.end() && value->is_array();
    std::vector<std::string> found;
    for (std::size_t i = 0; valid && i < value->size(); ++i) {
      valid = (*value)[i].is_string();
      if (valid) found.push_back((*value)[i].get<std::string>());
    }
    if (!valid) fail(key, value == object_.end(), "an array of texts");
    return found;
  }

  /// The member `member` of each object in an array; false where it is missing.
  std::vector<bool> flags(const char* key, const char* member) {
    const Json& array = object_[key];
    std::vector<bool> found;
    bool valid = array.is_array();
    for (std::size_t i = 0; valid && i < array.size(); ++i) {
      const Json flag = array[i].is_object() ? array[i].value(member, Json(false)) : Json();
      valid = flag.is_boolean();
      if (valid) found.push_back(flag.get<bool>());
    }
    if (!valid) fail(key, false, fmt::format("an array of objects in which {} is true or false", member));
    return found;
  }

  /// A text or an array of texts; none where it is missing.
  RecomputeUnits recompute_units(const char* key) {
    const auto value = object_.find(key);
    if (value == object_.end()) return {};
    if (value->is_array()) return {.list = texts(key)};
    const auto parsed = parse_recompute_units(text(key));
    if (!parsed.ok() && status_.ok()) status_ = invalid(fmt::format("{}: {}: {}", origin_, key, parsed.status().message()));
    return parsed.ok() ? *parsed : RecomputeUnits{};
  }

  [[nodiscard]] bool has(const char* key) const { return object_.contains(key); }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  void fail(const char* key, bool is_missing, const std::string& expected) {
    if (!status_.ok()) return;
    status_ = invalid(fmt::format("{}: {} {}", origin_, key, is_missing ? "is missing" : "is not " + expected));
  }

  const Json& object_;
  std::string_view origin_;
  Status status_;
};

/// The message of `status`, with the file in front.
Status in_file(std::string_view origin, std::string_view key, const Status& status) {
  return invalid(fmt::format("{}: {}: {}", origin, key, status.message()));
}

Status check_cuts(const PartitionFile& file, std::string_view origin) {
  const auto stages = static_cast<std::size_t>(file.shape.stages());
  if (file.cuts.size() + 1 != stages) {
    return invalid(
        fmt::format("{}: {} cuts make {} stages, the pipeline has {}", origin, file.cuts.size(), file.cuts.size() + 1, stages));
  }
  if (!file.recomputes.empty() && file.recomputes.size() != stages) {
    return invalid(
        fmt::format("{}: stages has {} entries, the pipeline has {} stages", origin, file.recomputes.size(), stages));
  }
  for (std::size_t i = 0; i < file.cuts.size(); ++i) {
    const int before = i == 0 ? 0 : file.cuts[i - 1];
    if (file.cuts[i] > before) continue;
    return invalid(fmt::format("{}: cuts must rise: '{}' does not come after '{}', so stage {} would be empty", origin,
                               file.units[static_cast<std::size_t>(file.cuts[i])], file.units[static_cast<std::size_t>(before)],
                               i));
  }
  return {};
}

/// What the file says of units: all, none, or a list.
Json recomputed_units(const Profile& profile, const PartitionRequest& request, const Partition& partition) {
  if (request.rules.recompute_units.rule == Recompute::all) return to_string(Recompute::all);
  Json list = Json::array();
  for (const std::vector<std::string>& of_stage : partition.recomputed_units(profile.unit_names())) {
    for (const std::string& run : of_stage) list.push_back(run);
  }
  if (list.empty()) return to_string(Recompute::none);
  return list;
}

}  // namespace

std::string to_json(const Profile& profile, const PartitionRequest& request, const Partition& partition) {
  const Shape& shape = request.rules.shape;
  Json object{{"version", kPartitionVersion}, {"model", profile.model}, {"pipeline", to_string(shape.kind)},
              {"partitions", shape.ranks},    {"chunks", shape.chunks}, {"microbatches", shape.microbatches}};
  if (shape.active_microbatches) object["active_microbatches"] = *shape.active_microbatches;
  object["microbatch"] = profile.microbatch;
  object["optimize"] = to_string(partition.objective);
  if (partition.objective == Objective::weighted) object["memory_weight"] = request.memory_weight;
  object["recompute"] = to_string(request.rules.recompute);
  object["recompute_units"] = recomputed_units(profile, request, partition);
  object["units"] = profile.unit_names();
  object["cuts"] = Json::array();
  object["stages"] = Json::array();
  for (const Stage& stage : partition.stages) {
    const std::string& first = profile.units[static_cast<std::size_t>(stage.first)].name;
    if (stage.first > 0) object["cuts"].push_back(first);
    object["stages"].push_back({{"first_unit", first},
                                {"units", stage.end - stage.first},
                                {"time_us", stage.time_us},
                                {"bytes", stage.bytes},
                                {"held", stage.held},
                                {"sent_bytes", stage.sent_bytes},
                                {"recomputes", stage.recomputes}});
  }
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<PartitionFile> parse_partition(std::string_view json, std::string_view origin) {
  const auto object = parse_object(json, origin, "partition");
  if (!object.ok()) return object.status();
  Reader reader(*object, origin);
  const int version = reader.count("version");
  PartitionFile file;
  file.model = reader.text("model");
  const std::string kind = reader.text("pipeline");
  file.shape.ranks = reader.count("partitions");
  file.shape.chunks = reader.has("chunks") ? reader.count("chunks") : 1;
  file.shape.microbatches = reader.count("microbatches");
  if (reader.has("active_microbatches")) file.shape.active_microbatches = reader.count("active_microbatches");
  file.units = reader.texts("units");
  const auto cuts = reader.texts("cuts");
  const std::string recompute = reader.has("recompute") ? reader.text("recompute") : "none";
  file.recompute_units = reader.recompute_units("recompute_units");
  if (reader.has("stages")) file.recomputes = reader.flags("stages", "recomputes");
  if (!reader.status().ok()) return reader.status();
  if (version != kPartitionVersion) {
    return invalid(fmt::format("{}: version is {}, this program reads {}", origin, version, kPartitionVersion));
  }
  const auto parsed = parse_schedule_kind(kind);
  if (!parsed.ok()) return in_file(origin, "pipeline", parsed.status());
  file.shape.kind = *parsed;
  const auto parsed_recompute = parse_recompute(recompute);
  if (!parsed_recompute.ok()) return in_file(origin, "recompute", parsed_recompute.status());
  file.recompute = *parsed_recompute;
  if (Status status = check(file.shape); !status.ok()) return in_file(origin, "partitions and microbatches", status);
  if (file.units.empty() || file.units.size() > kMaxUnits) {
    return invalid(fmt::format("{}: units has {} names, not 1 to {}", origin, file.units.size(), kMaxUnits));
  }
  const std::set<std::string> names(file.units.begin(), file.units.end());
  if (names.size() != file.units.size()) return invalid(fmt::format("{}: units has a name twice", origin));
  for (const std::string& name : cuts) {
    const auto unit = find_unit(file.units, name);
    if (!unit.ok()) return in_file(origin, "cuts", unit.status());
    file.cuts.push_back(*unit);
  }
  if (Status status = check_cuts(file, origin); !status.ok()) return status;
  const auto runs = find_runs(file.units, file.recompute_units.list);
  if (!runs.ok()) return in_file(origin, "recompute_units", runs.status());
  return file;
}

Result<PartitionFile> read_partition(const std::string& path) {
  const auto text = read_text(path, "partition");
  if (!text.ok()) return text.status();
  return parse_partition(*text, path);
}

}  // namespace shoal::pipeline
