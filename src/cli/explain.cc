// `shoal explain`: which algorithm a call would run, and why.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <shoal/limits.h>

#include "src/cli/commands.h"
#include "src/cli/pipeline_tools.h"
#include "src/cli/schedule_options.h"
#include "src/communicator/tuning_file.h"
#include "src/selector/predict.h"
#include "src/selector/selector.h"
#include "src/settings/settings.h"
#include "src/simulate/platform.h"
#include "src/simulate/published.h"
#ifdef SHOAL_HAVE_SIMGRID
#include "src/simulate/scale.h"
#endif

namespace shoal {
namespace {

void print_costs(const Topology& topology) {
  constexpr const char* kClasses[] = {"in a rank", "in a node", "between nodes"};
  for (std::size_t i = 1; i < kLinkClassCount; ++i) {
    const LinkCost& cost = topology.cost[i];
    fmt::print("  {:<14} {:>8.2f} us, {:.2f} of them busy, + {:.3f} GB/s", kClasses[i], cost.latency_us, cost.overhead(),
               cost.us_per_byte > 0 ? 1 / cost.us_per_byte / 1000 : 0);
    if (cost.burst_us_per_byte > 0)
      fmt::print(", a short message after a pause {:.3f} GB/s", 1 / cost.burst_us_per_byte / 1000);
    fmt::print("\n");
  }
}

/// The part of the table at `path` for `topology`. Prints one line about the table, if there is one.
Result<std::optional<TunedShape>> consult_table(const std::string& path, const Topology& topology, CollectiveKind kind) {
  if (path.empty()) return std::optional<TunedShape>();
  const auto table = read_tuning_file(path);
  if (!table.ok()) return table.status();
  const std::string transports = transports_between(topology);
  const TunedShape* tuned = table->find(topology, transports);
  if (tuned == nullptr) {
    fmt::print("  table {}: no times for {} over {}; it has {}\n", path, topology.shape(), transports,
               table->shapes.empty() ? "nothing" : table->names());
    return std::optional<TunedShape>();
  }
  const auto range = measured_range(*tuned, kind);
  fmt::print("  table {}: {}, {}\n", path, tuned->name(),
             range ? fmt::format("{} of {} to {}", to_string(kind), format_bytes(range->first), format_bytes(range->second))
                   : fmt::format("no times for {}", to_string(kind)));
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
    // A prediction cannot be compared with a measurement.
    const bool comparable = candidate.measured_us.has_value() == measured && fastest.time_us() > 0;
    fmt::print("{} {:<{}}{} {:>11.1f} {:>8}   {:>11.1f} {:>11.1f} {:>11.1f}\n",
               candidate.algorithm == explanation.choice.algorithm ? "->" : "  ", candidate.algorithm->name, width,
               table_column(candidate.measured_us ? fmt::format("{:.1f}", *candidate.measured_us) : "-"),
               candidate.predicted_us, comparable ? fmt::format("{:.2f}", candidate.time_us() / fastest.time_us()) : "-",
               terms.latency_us, terms.bytes_us, terms.arithmetic_us);
  }
  if (!others.empty()) fmt::print("   do not support this call: {}\n", others);
}

/// The platform on which to explain a call, if one was named.
struct ExplainedPlatform {
  std::string name;
  int nodes = 0;
  std::optional<int> ranks_per_node;
};

#ifdef SHOAL_HAVE_SIMGRID
constexpr std::size_t kSimulated = 4;     // candidates, the fastest by the model
constexpr int kMostExplainedRanks = 512;  // takes seconds; for more ranks use shoal simulate, which shows its progress

/// Prints the times of the fastest candidates by the finer simulation, in which a rank reaches only its own NICs.
void print_simulated(const Explanation& explanation, const Topology& topology, const Collective& collective,
                     const Platform& platform) {
  if (topology.ranks() > kMostExplainedRanks) {
    fmt::print("\n   {} ranks take long to simulate on SimGrid; run: shoal simulate --platform {} --nodes {}\n",
               topology.ranks(), platform.name, topology.nodes());
    return;
  }
  std::vector<const Candidate*> chosen;
  for (const Candidate& candidate : explanation.candidates) {
    if (!candidate.status.ok()) continue;
    if (chosen.size() < kSimulated || candidate.algorithm == explanation.choice.algorithm) chosen.push_back(&candidate);
  }
  fmt::print("\n   the fastest algorithms on SimGrid, with contention:\n");
  for (const Candidate* candidate : chosen) {
    std::fflush(stdout);  // SimGrid runs in a child process, which would print buffered text a second time
    const auto found = predict_at_scale(*candidate->algorithm, topology, collective, platform);
    if (found.ok()) {
      fmt::print("   {:<36} {:>12.1f} us {:>9.3g} GB/s of bus bandwidth ({})\n", found->algorithm, found->total_us,
                 found->bus_gbyte_s, found->how);
    } else {
      fmt::print("   {:<36} {}\n", candidate->algorithm->name, found.status().message());
    }
  }
}
#endif

void print_published(const Platform& platform, int nodes, const Topology& topology, const Collective& collective) {
  if (collective.kind != CollectiveKind::all_reduce) return;
  for (const PublishedResult* published : nearest_published(platform.name, nodes, collective.input_bytes())) {
    std::string other;  // the differences to this call
    if (published->nodes != nodes) other += fmt::format(" on {} node{}", published->nodes, published->nodes == 1 ? "" : "s");
    if (published->ranks * nodes != topology.ranks() * published->nodes)
      other += fmt::format(" with {} ranks a node", published->ranks / published->nodes);
    if (published->bytes != collective.input_bytes())
      other += published->bytes < 1024 ? fmt::format(" of {} B", published->bytes)
                                       : fmt::format(" of {}", format_bytes(published->bytes));
    fmt::print("published for NCCL{}: {:.1f} us{} ({}{}{})\n", other, published->microseconds(),
               published->bus_gbyte_s > 0 ? fmt::format(", {:g} GB/s", published->bus_gbyte_s) : "", published->source,
               published->note.empty() ? "" : "; ", published->note);
  }
  if (const double limit = wire_limit_gbyte_s(platform, nodes, topology.ranks()); limit > 0) {
    fmt::print("the NICs of a node limit an all_reduce to {:.4g} GB/s of bus bandwidth\n", limit);
  }
}

/// The topology of the options. Sets `platform` if one was named.
Result<Topology> topology_for(const CLI::App& command, const ScheduleOptions& options, const ExplainedPlatform& wanted,
                              std::optional<Platform>& platform) {
  if (wanted.name.empty()) {
    if (wanted.nodes == 0 && !wanted.ranks_per_node) return options.topology();
    return Status(StatusCode::invalid_argument, "--nodes and --ranks-per-node need a --platform");
  }
  for (const char* other : {"--shape", "--ranks", "--network-latency-us", "--network-gbit-s", "--shared-latency-us",
                            "--shared-gbyte-s", "--cores"}) {
    if (command.count(other) > 0) {
      return Status(StatusCode::invalid_argument, fmt::format("a platform has its own nodes and costs: remove {}", other));
    }
  }
  auto found = find_platform(wanted.name);
  if (!found.ok()) return found.status();
  const int local = wanted.ranks_per_node.value_or(found->ranks_per_node);
  const int nodes = wanted.nodes > 0 ? wanted.nodes : 2;
  if (local < 1 || nodes > kMaxScheduleRanks / local) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{} nodes of {} ranks: not between 1 and {} ranks", nodes, local, kMaxScheduleRanks));
  }
  platform = std::move(found).value();
  return topology_of(*platform, nodes, local);
}

Status run(const CLI::App& command, const ScheduleOptions& options, const ExplainedPlatform& wanted,
           const std::string& table_path) {
  std::optional<Platform> platform;
  const auto topology = topology_for(command, options, wanted, platform);
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  // Checked before anything is printed, so that an error is one line.
  if (const auto choice = select(*topology, *collective, options.algorithm, nullptr, choice_costs()); !choice.ok())
    return choice.status();
  if (!table_path.empty()) {
    if (const auto table = read_tuning_file(table_path); !table.ok()) return table.status();
  }

  fmt::print("{} ({}{}) on {}\n", to_string(*collective), format_bytes(collective->input_bytes()),
             deals_in_shares(collective->kind) ? " per share" : "", topology->shape());
  if (platform) fmt::print("  {}: {}\n  {}\n", platform->name, platform->hardware, platform->source);
  print_costs(*topology);
  const auto tuned = consult_table(table_path, *topology, collective->kind);
  if (!tuned.ok()) return tuned.status();
  const auto explanation = explain(*topology, *collective, options.algorithm, *tuned ? &**tuned : nullptr, choice_costs());
  if (!explanation.ok()) return explanation.status();
  print_candidates(*explanation, *topology, *collective);
#ifdef SHOAL_HAVE_SIMGRID
  if (platform) print_simulated(*explanation, *topology, *collective, *platform);
#endif
  fmt::print("\n{} (by {}).\n{}: {}.\n", explanation->reason, to_string(explanation->choice.basis),
             explanation->choice.algorithm->name, explanation->choice.algorithm->summary);
  if (platform) {
    print_published(*platform, topology->nodes(), *topology, *collective);
    fmt::print(
        "All times are predictions. In the table, the Selector's model, a rank's own core moves the data inside a node; on "
        "SimGrid\nthe hardware does. Neither models GPU kernels, PCIe between GPU and NIC, or congestion.\n");
  }
  return {};
}

}  // namespace

void add_explain_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "explain", "Shows which algorithm a call would run, and why: shoal explain all_reduce 4MiB --shape 2x4");
  const auto options = std::make_shared<ScheduleOptions>();
  const auto table_path = std::make_shared<std::string>(setting("SHOAL_TUNING"));
  command->add_option("collective", options->collective_name, "all_reduce, reduce_scatter, all_to_all, ...")
      ->capture_default_str();
  command->add_option("size", options->size, "bytes of the message, or of each rank's share of it: 4, 4K, 4KiB, 64MiB")
      ->capture_default_str();
  options->add_to(*command);
  options->add_costs_to(*command);
  const auto platform = std::make_shared<ExplainedPlatform>();
  command->add_option("--platform,-p", platform->name,
                      "EC2 instance type (p5.48xlarge, or p5) or another platform of shoal simulate, with its costs");
  command->add_option("--nodes,-N", platform->nodes, "nodes of the platform (default 2)")
      ->check(CLI::Range(1, kMaxScheduleRanks));
  command->add_option("--ranks-per-node,-L", platform->ranks_per_node, "ranks of each node (default: the platform's)");
  command->add_option("--tuning", *table_path, "table of measured times by shoal tune (default: SHOAL_TUNING)");
  add_explain_pipeline_command(*command, exit_status);
  command->callback([=] {
    if (!command->get_subcommands().empty()) return;
    const Status status = run(*command, *options, *platform, *table_path);
    if (!status.ok()) *exit_status = report_error("explain", status);
  });
}

}  // namespace shoal
