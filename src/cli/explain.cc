// `shoal explain`: which algorithm a call would run, and why.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "src/cli/commands.h"
#include "src/cli/schedule_options.h"
#include "src/communicator/tuning_file.h"
#include "src/selector/predict.h"
#include "src/selector/selector.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

void print_costs(const Topology& topology) {
  constexpr const char* kClasses[] = {"in a rank", "in a node", "between nodes"};
  for (std::size_t i = 1; i < kLinkClassCount; ++i) {
    const LinkCost& cost = topology.cost[i];
    fmt::print("  {:<14} {:>8.2f} us, {:.2f} of them busy, + {:.3f} GB/s\n", kClasses[i], cost.latency_us, cost.overhead(),
               cost.us_per_byte > 0 ? 1 / cost.us_per_byte / 1000 : 0);
  }
}

/// The table that counts, and what it knows of this call. Prints one line where there is one.
Result<std::optional<TunedShape>> consult_table(const std::string& path, const Topology& topology, CollectiveKind kind) {
  if (path.empty()) return std::optional<TunedShape>();
  const auto table = read_tuning_file(path);
  if (!table.ok()) return table.status();
  const std::string transports = transports_between(topology);
  const TunedShape* tuned = table->find(topology, transports);
  if (tuned == nullptr) {
    fmt::print("  table {}: nothing of {} over {}; it has {}\n", path, topology.shape(), transports,
               table->shapes.empty() ? "nothing" : table->names());
    return std::optional<TunedShape>();
  }
  const auto range = measured_range(*tuned, kind);
  fmt::print("  table {}: {}, {}\n", path, tuned->name(),
             range ? fmt::format("{} of {} to {}", to_string(kind), format_bytes(range->first), format_bytes(range->second))
                   : fmt::format("nothing of {}", to_string(kind)));
  return std::optional<TunedShape>(*tuned);
}

void print_candidates(const Explanation& explanation, const Topology& topology, const Collective& collective) {
  const Candidate& fastest = explanation.candidates.front();
  const bool measured = fastest.measured_us.has_value();
  std::size_t width = 0;
  for (const Candidate& candidate : explanation.candidates) width = std::max(width, candidate.algorithm->name.size());
  const auto table_column = [&](const std::string& text) { return measured ? fmt::format(" {:>11}", text) : std::string(); };
  fmt::print("\n   {:<{}}{} {:>11} {:>8}   {:>11} {:>11} {:>11}\n", "times in us", width, table_column("measured"), "predicted",
             "x best", "latency", "bytes", "arithmetic");
  std::string others;
  for (const Candidate& candidate : explanation.candidates) {
    if (!candidate.status.ok()) {
      others += fmt::format("{}{}", others.empty() ? "" : ", ", candidate.algorithm->name);
      continue;
    }
    const PredictedTerms terms = predict_terms(*candidate.algorithm, topology, collective);
    // A prediction cannot be held against a measurement.
    const bool comparable = candidate.measured_us.has_value() == measured && fastest.time_us() > 0;
    fmt::print("{} {:<{}}{} {:>11.1f} {:>8}   {:>11.1f} {:>11.1f} {:>11.1f}\n",
               candidate.algorithm == explanation.choice.algorithm ? "->" : "  ", candidate.algorithm->name, width,
               table_column(candidate.measured_us ? fmt::format("{:.1f}", *candidate.measured_us) : "-"),
               candidate.predicted_us, comparable ? fmt::format("{:.2f}", candidate.time_us() / fastest.time_us()) : "-",
               terms.latency_us, terms.bytes_us, terms.arithmetic_us);
  }
  if (!others.empty()) fmt::print("   cannot serve it: {}\n", others);
}

Status run(const ScheduleOptions& options, const std::string& table_path) {
  const auto topology = options.topology();
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  // Before anything is printed: an error is one line.
  if (const auto choice = select(*topology, *collective, options.algorithm); !choice.ok()) return choice.status();
  if (!table_path.empty()) {
    if (const auto table = read_tuning_file(table_path); !table.ok()) return table.status();
  }

  fmt::print("{} ({}{}) on {}\n", to_string(*collective), format_bytes(collective->input_bytes()),
             deals_in_shares(collective->kind) ? " a share" : "", topology->shape());
  print_costs(*topology);
  const auto tuned = consult_table(table_path, *topology, collective->kind);
  if (!tuned.ok()) return tuned.status();
  const auto explanation = explain(*topology, *collective, options.algorithm, *tuned ? &**tuned : nullptr);
  if (!explanation.ok()) return explanation.status();
  print_candidates(*explanation, *topology, *collective);
  fmt::print("\n{} (by {}).\n{}: {}.\n", explanation->reason, to_string(explanation->choice.basis),
             explanation->choice.algorithm->name, explanation->choice.algorithm->summary);
  return {};
}

}  // namespace

void add_explain_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "explain", "Says which algorithm a call would run, and why: shoal explain all_reduce 4MiB --shape 2x4");
  const auto options = std::make_shared<ScheduleOptions>();
  const auto table_path = std::make_shared<std::string>(setting("SHOAL_TUNING"));
  command->add_option("collective", options->collective_name, "all_reduce, reduce_scatter, all_to_all, ...")
      ->capture_default_str();
  command->add_option("size", options->size, "bytes of the message, or of each rank's share of it: 4, 4K, 4KiB, 64MiB")
      ->capture_default_str();
  options->add_to(*command);
  options->add_costs_to(*command);
  command->add_option("--tuning", *table_path, "table of measured times by shoal tune (default: SHOAL_TUNING)");
  command->callback([options, table_path, exit_status] {
    const Status status = run(*options, *table_path);
    if (!status.ok()) *exit_status = report_error("explain", status);
  });
}

}  // namespace shoal
