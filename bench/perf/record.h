// One measured row, and the JSON document of a run.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/types.h>

namespace shoal::perf {

/// The result of one library for one call at one size, in one form. Field names are those of the JSON, units included.
struct Record {
  std::string library;
  CollectiveKind collective = CollectiveKind::all_reduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  int nodes = 1;
  std::string transport;
  std::string algorithm;
  std::size_t bytes = 0;
  double latency_us = 0;  ///< median over the rounds
  double latency_us_p10 = 0;
  double latency_us_p90 = 0;
  double algbw_gbs = 0;                   ///< bytes / latency, GB = 1e9
  double busbw_gbs = 0;                   ///< algbw x bus_factor()
  std::optional<double> limit_gbs;        ///< goodput between nodes, per node and direction; empty on one node
  std::optional<double> limit_fraction;   ///< least time possible with limit_gbs / latency
  double cpu_s_per_gb = 0;                ///< CPU seconds of all ranks in a timed block (median), per GB of message
  std::size_t wrong = 0;                  ///< elements, over all ranks and checked calls
  std::optional<double> time_over_shoal;  ///< a peer's: paired_ratio() to shoal's times in the same form
};

/// Sets the figures computed from `block_us` (one time per round) and `cpu_s_per_call` (all ranks together); bytes, ranks,
/// nodes and collective must be set. `goodput_gbs` is 0 if there is no limit.
void set_figures(Record& record, std::span<const double> block_us, double cpu_s_per_call, double goodput_gbs);

/// The median over the rounds of `theirs` / `ours`, both one time per round: a slow phase of the machine, which lasts longer
/// than a round, affects both. Empty if there are no rounds or their numbers differ.
[[nodiscard]] std::optional<double> paired_ratio(std::span<const double> theirs, std::span<const double> ours);

/// A row of the table: one library at one size; a collective without an out-of-place form has only `in_place`.
struct Row {
  std::string library;
  std::size_t bytes = 0;
  std::size_t count = 0;
  int root = -1;
  std::optional<Record> out_of_place;
  std::optional<Record> in_place;
  std::string unsupported;  ///< reason for a missing figure; "" if there is one

  /// The form used by reports that show only one.
  [[nodiscard]] const Record* main() const { return out_of_place ? &*out_of_place : in_place ? &*in_place : nullptr; }
};

/// `time_over_shoal` of `library` in one form (&Row::out_of_place or &Row::in_place), at every size measured for both
/// libraries.
struct Ratio {
  std::size_t bytes = 0;
  double value = 0;
};
[[nodiscard]] std::vector<Ratio> ratios_to_shoal(std::span<const Row> rows, const std::string& library,
                                                 std::optional<Record> Row::*form);
/// Geometric mean over the sizes of at least `least_bytes`; 0 if there is none.
[[nodiscard]] double mean_ratio(std::span<const Ratio> ratios, std::size_t least_bytes);

/// "results" contains each row's main form, "results_in_place" the in-place form of rows that have both. Missing numbers are
/// null.
[[nodiscard]] nlohmann::ordered_json to_json(const Record& record);
[[nodiscard]] nlohmann::ordered_json document(const nlohmann::ordered_json& machine, const std::string& command,
                                              std::span<const Row> rows);

}  // namespace shoal::perf
