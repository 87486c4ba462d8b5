#include "bench/perf/record.h"

#include <nlohmann/json.hpp>

#include "bench/perf/statistics.h"

namespace shoal::perf {
namespace {

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

void set_figures(Record& record, std::span<const double> block_us, double cpu_s_per_call, double goodput_gbs) {
  constexpr double kBytesPerUsInGbs = 1e-3;
  const auto bytes = static_cast<double>(record.bytes);
  record.latency_us = median(block_us);
  record.latency_us_p10 = quantile(block_us, 0.1);
  record.latency_us_p90 = quantile(block_us, 0.9);
  if (record.latency_us > 0) record.algbw_gbs = bytes / record.latency_us * kBytesPerUsInGbs;
  record.busbw_gbs = record.algbw_gbs * bus_factor(record.collective, record.ranks);
  if (record.bytes > 0) record.cpu_s_per_gb = cpu_s_per_call / (bytes * 1e-9);
  const double least_bytes = least_bytes_per_node(record.collective, record.ranks, record.nodes, bytes);
  if (goodput_gbs > 0 && least_bytes > 0 && record.latency_us > 0) {
    record.limit_gbs = goodput_gbs;
    record.limit_fraction = least_bytes / goodput_gbs * kBytesPerUsInGbs / record.latency_us;
  }
}

std::optional<double> paired_ratio(std::span<const double> theirs, std::span<const double> ours) {
  if (theirs.size() != ours.size()) return {};
  std::vector<double> ratios;
  for (std::size_t round = 0; round < ours.size(); ++round) {
    if (ours[round] > 0) ratios.push_back(theirs[round] / ours[round]);
  }
  if (ratios.empty()) return {};
  return median(ratios);
}

std::vector<Ratio> ratios_to_shoal(std::span<const Row> rows, const std::string& library, std::optional<Record> Row::*form) {
  std::vector<Ratio> ratios;
  for (const Row& row : rows) {
    const std::optional<Record>& record = row.*form;
    if (row.library == library && record && record->time_over_shoal) ratios.push_back({row.bytes, *record->time_over_shoal});
  }
  return ratios;
}

double mean_ratio(std::span<const Ratio> ratios, std::size_t least_bytes) {
  std::vector<double> values;
  for (const Ratio& ratio : ratios) {
    if (ratio.bytes >= least_bytes && ratio.value > 0) values.push_back(ratio.value);
  }
  return geometric_mean(values);
}

nlohmann::ordered_json to_json(const Record& record) {
  return {
      {"library", record.library},
      {"collective", to_string(record.collective)},
      {"type", to_string(record.type)},
      {"op", to_string(record.op)},
      {"ranks", record.ranks},
      {"nodes", record.nodes},
      {"transport", record.transport},
      {"algorithm", record.algorithm},
      {"bytes", record.bytes},
      {"latency_us", record.latency_us},
      {"latency_us_p10", record.latency_us_p10},
      {"latency_us_p90", record.latency_us_p90},
      {"algbw_gbs", record.algbw_gbs},
      {"busbw_gbs", record.busbw_gbs},
      {"limit_gbs", or_null(record.limit_gbs)},
      {"limit_fraction", or_null(record.limit_fraction)},
      {"cpu_s_per_gb", record.cpu_s_per_gb},
      {"wrong", record.wrong},
      {"time_over_shoal", or_null(record.time_over_shoal)},
  };
}

nlohmann::ordered_json document(const nlohmann::ordered_json& machine, const std::string& command, std::span<const Row> rows) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  nlohmann::ordered_json in_place = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    if (row.main() != nullptr) results.push_back(to_json(*row.main()));
    if (row.out_of_place && row.in_place) in_place.push_back(to_json(*row.in_place));
  }
  return {{"machine", machine}, {"command", command}, {"results", results}, {"results_in_place", in_place}};
}

}  // namespace shoal::perf
