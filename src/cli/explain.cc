// `shoal explain`: which algorithm a call would run, and why.

#include <fmt/format.h>

#include <memory>

#include "src/cli/commands.h"
#include "src/cli/schedule_options.h"
#include "src/selector/selector.h"

namespace shoal {
namespace {

Status run(const ScheduleOptions& options) {
  const auto topology = options.topology();
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  const auto explanation = explain(*topology, *collective, options.algorithm);
  if (!explanation.ok()) return explanation.status();

  fmt::print("{} ({} of each rank) on {}\n", to_string(*collective), format_size(collective->input_bytes()), topology->shape());
  constexpr const char* kClasses[] = {"in a rank", "in a node", "between nodes"};
  for (std::size_t i = 1; i < kLinkClassCount; ++i) {
    const LinkCost& cost = topology->cost[i];
    fmt::print("  {:<14} {:>8.2f} us + {:.3f} GB/s\n", kClasses[i], cost.latency_us,
               cost.us_per_byte > 0 ? 1 / cost.us_per_byte / 1000 : 0);
  }
  fmt::print("\n");
  for (const Candidate& candidate : explanation->candidates) {
    const bool chosen = candidate.algorithm == explanation->choice.algorithm;
    const std::string time = candidate.status.ok() ? fmt::format("{:.1f} us", candidate.predicted_us) : "-";
    fmt::print("{} {:<20} {:>14}  {}\n", chosen ? "->" : "  ", candidate.algorithm->name, time,
               candidate.status.ok() ? std::string(candidate.algorithm->summary) : candidate.status.message());
  }
  fmt::print("\n{}.\n", explanation->reason);
  return {};
}

}  // namespace

void add_explain_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand(
      "explain", "Says which algorithm a call would run, and why: shoal explain all_reduce 4MiB --shape 2x4");
  const auto options = std::make_shared<ScheduleOptions>();
  command->add_option("collective", options->collective_name, "all_reduce, broadcast, all_gather or barrier")
      ->capture_default_str();
  command->add_option("size", options->size, "bytes of each rank's input: 4, 4K, 4KiB, 64MiB")->capture_default_str();
  options->add_to(*command);
  options->add_costs_to(*command);
  command->callback([options, exit_status] {
    const Status status = run(*options);
    if (!status.ok()) *exit_status = report_error("explain", status);
  });
}

}  // namespace shoal
