#include "src/selector/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include <shoal/limits.h>
#include <shoal/shoal.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
// Far above what `shoal tune` writes; keeps what start-up publishes well below the size limits of stores.
constexpr std::size_t kMaxMeasurements = 4096;

Status malformed(const std::string& what) { return {StatusCode::invalid_argument, what}; }

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A positive finite number, else 0.
double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  const double value = found != object.end() && found->is_number() ? found->get<double>() : 0;
  return std::isfinite(value) && value > 0 ? value : 0;
}

Result<Measurement> parse_measurement(const Json& entry) {
  if (!entry.is_object()) return malformed("is not an object");
  Measurement measurement;
  const auto kind = parse_collective(text_of(entry, "collective"));
  if (!kind.ok()) return kind.status();
  measurement.kind = *kind;
  const auto algorithm = find_algorithm(text_of(entry, "algorithm"));
  if (!algorithm.ok()) return algorithm.status();
  measurement.algorithm = *algorithm;
  const auto bytes = entry.find("bytes");
  if (bytes == entry.end() || !bytes->is_number_unsigned() || bytes->get<std::size_t>() == 0) {
    return malformed("has no positive \"bytes\"");
  }
  measurement.bytes = bytes->get<std::size_t>();
  measurement.median_us = number_of(entry, "latency_us");
  if (measurement.median_us == 0) return malformed("has no positive \"latency_us\"");
  measurement.p10_us = number_of(entry, "latency_us_p10");
  measurement.p90_us = number_of(entry, "latency_us_p90");
  measurement.samples = static_cast<int>(std::min(number_of(entry, "samples"), 1e9));
  return measurement;
}

Result<std::vector<int>> parse_placement(const Json& shape) {
  const auto nodes = shape.find("node_of_rank");
  if (nodes == shape.end() || !nodes->is_array() || nodes->empty()) {
    return malformed("has no \"node_of_rank\", the list of every rank's node");
  }
  if (nodes->size() > kMaxJobRanks) {
    return malformed(fmt::format("has {} ranks in \"node_of_rank\"; a job has at most {}", nodes->size(), kMaxJobRanks));
  }
  std::vector<int> node_of_rank;
  int known = 0;
  for (const Json& node : *nodes) {
    if (!node.is_number_unsigned() || node.get<std::uint64_t>() > static_cast<std::uint64_t>(known)) {
      return malformed("does not number the nodes in \"node_of_rank\" from 0 in order of their lowest rank");
    }
    node_of_rank.push_back(node.get<int>());
    known = std::max(known, node_of_rank.back() + 1);
  }
  return node_of_rank;
}

Result<TunedShape> parse_shape_object(const Json& shape) {
  if (!shape.is_object()) return malformed("is not an object");
  TunedShape tuned;
  auto placement = parse_placement(shape);
  if (!placement.ok()) return placement.status();
  tuned.node_of_rank = std::move(placement).value();
  tuned.transports = text_of(shape, "transports");
  if (tuned.transports.empty()) return malformed("has no \"transports\"");
  const auto entries = shape.find("entries");
  if (entries == shape.end() || !entries->is_array()) return malformed("has no list of \"entries\"");
  if (entries->size() > kMaxMeasurements) {
    return malformed(fmt::format("has {} entries, more than {}", entries->size(), kMaxMeasurements));
  }
  std::set<std::tuple<CollectiveKind, const Algorithm*, std::size_t>> seen;
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const auto measurement = parse_measurement((*entries)[i]);
    if (!measurement.ok()) {
      return Status(measurement.status().code(), fmt::format("entry {}: {}", i + 1, measurement.status().message()));
    }
    if (!seen.emplace(measurement->kind, measurement->algorithm, measurement->bytes).second) {
      return malformed(fmt::format("entry {}: {} of {} bytes by {} occurs twice", i + 1, to_string(measurement->kind),
                                   measurement->bytes, measurement->algorithm->name));
    }
    tuned.measurements.push_back(*measurement);
  }
  return tuned;
}

}  // namespace

std::string TunedShape::name() const {
  Topology topology;
  topology.node_of_rank = node_of_rank;
  // The shape alone does not distinguish ranks dealt to the nodes in turn from ranks that fill one node after the other.
  const char* order = std::ranges::is_sorted(node_of_rank) ? "" : " (ranks not node by node)";
  return fmt::format("{}{} over {}", topology.shape(), order, transports);
}

bool TunedShape::matches(const Topology& topology, std::string_view transports_in_use) const {
  return node_of_rank == topology.node_of_rank && transports == transports_in_use;
}

const TunedShape* TuningTable::find(const Topology& topology, std::string_view transports) const {
  const auto found = std::ranges::find_if(shapes, [&](const TunedShape& tuned) { return tuned.matches(topology, transports); });
  return found == shapes.end() ? nullptr : &*found;
}

std::string TuningTable::names() const {
  std::vector<std::string> names;
  for (const TunedShape& tuned : shapes) names.push_back(tuned.name());
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string transports_between(const Topology& topology, bool shared_memory_allowed, std::string_view network) {
  if (topology.ranks() < 2) return "local";
  if (!shared_memory_allowed || topology.nodes() == topology.ranks()) return std::string(network);
  return topology.nodes() == 1 ? "shm" : "shm+" + std::string(network);
}

std::optional<double> measured_us(const TunedShape& tuned, const Algorithm& algorithm, const Collective& collective) {
  const std::size_t bytes = collective.input_bytes();
  const Measurement* below = nullptr;
  const Measurement* above = nullptr;
  for (const Measurement& one : tuned.measurements) {
    if (one.algorithm != &algorithm || one.kind != collective.kind) continue;
    if (one.bytes <= bytes && (below == nullptr || one.bytes > below->bytes)) below = &one;
    if (one.bytes >= bytes && (above == nullptr || one.bytes < above->bytes)) above = &one;
  }
  if (below == nullptr || above == nullptr) return std::nullopt;
  if (below == above) return below->median_us;
  const auto ratio = [](std::size_t a, std::size_t b) { return std::log(static_cast<double>(a) / static_cast<double>(b)); };
  const double share = ratio(bytes, below->bytes) / ratio(above->bytes, below->bytes);
  return below->median_us * std::pow(above->median_us / below->median_us, share);
}

std::optional<std::pair<std::size_t, std::size_t>> measured_range(const TunedShape& tuned, CollectiveKind kind) {
  std::optional<std::pair<std::size_t, std::size_t>> range;
  for (const Measurement& one : tuned.measurements) {
    if (one.kind != kind) continue;
    if (!range) range = {one.bytes, one.bytes};
    range = {std::min(range->first, one.bytes), std::max(range->second, one.bytes)};
  }
  return range;
}

std::string_view tuning_version() {
  static const std::string version = fmt::format("{}.{}.{}", SHOAL_VERSION_MAJOR, SHOAL_VERSION_MINOR, SHOAL_VERSION_PATCH);
  return version;
}

nlohmann::ordered_json tuning_file(nlohmann::ordered_json shapes) {
  return {{"format", kFormat}, {"shoal", tuning_version()}, {"shapes", std::move(shapes)}};
}

nlohmann::ordered_json to_json(const TunedShape& tuned) {
  Topology topology;
  topology.node_of_rank = tuned.node_of_rank;
  Json entries = Json::array();
  const auto rounded = [](double us) { return std::round(us * 1e4) / 1e4; };
  for (const Measurement& one : tuned.measurements) {
    entries.push_back({{"collective", to_string(one.kind)},
                       {"bytes", one.bytes},
                       {"algorithm", one.algorithm->name},
                       {"latency_us", rounded(one.median_us)},
                       {"latency_us_p10", rounded(one.p10_us)},
                       {"latency_us_p90", rounded(one.p90_us)},
                       {"samples", one.samples}});
  }
  return {{"shape", topology.shape()},
          {"ranks", topology.ranks()},
          {"node_of_rank", tuned.node_of_rank},
          {"transports", tuned.transports},
          {"entries", std::move(entries)}};
}

Result<TuningTable> parse_tuning(std::string_view text) {
  const Json file = Json::parse(text, nullptr, false);
  if (file.is_discarded()) return malformed("is not JSON (truncated?)");
  if (!file.is_object() || !file.contains("format")) return malformed("is JSON, but not a table written by shoal tune");
  if (file["format"] != kFormat) {
    return Status(StatusCode::unsupported,
                  fmt::format("has format {}, this library reads {}; run shoal tune again", file["format"].dump(), kFormat));
  }
  if (const std::string version = text_of(file, "shoal"); version != tuning_version()) {
    return Status(StatusCode::unsupported, fmt::format("was measured with shoal {}, this is {}; run shoal tune again",
                                                       version.empty() ? "without a version" : version, tuning_version()));
  }
  const auto shapes = file.find("shapes");
  if (shapes == file.end() || !shapes->is_array()) return malformed("has no list of \"shapes\"");
  TuningTable table;
  for (std::size_t i = 0; i < shapes->size(); ++i) {
    auto tuned = parse_shape_object((*shapes)[i]);
    if (!tuned.ok()) {
      return Status(tuned.status().code(), fmt::format("shape {}: {}", i + 1, tuned.status().message()));
    }
    table.shapes.push_back(std::move(tuned).value());
  }
  return table;
}

Result<TunedShape> parse_tuned_shape(std::string_view text) {
  const Json shape = Json::parse(text, nullptr, false);
  if (shape.is_discarded()) return malformed("is not JSON");
  return parse_shape_object(shape);
}

}  // namespace shoal
