// `shoal simulate`: how long schedules take under the cost model, or on a platform simulated by SimGrid.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "src/cli/commands.h"
#include "src/cli/pipeline_tools.h"
#include "src/cli/schedule_options.h"
#include "src/settings/settings.h"
#include "src/simulate/simulator.h"
#ifdef SHOAL_HAVE_SIMGRID
#include "src/cli/simulate_platform.h"
#endif

namespace shoal {
namespace {

/// Adds the line of one algorithm to `table`.
Status simulate_one(const Algorithm& algorithm, const Topology& topology, const Collective& collective, std::string& table) {
  const auto schedule = build_schedule_of_bounded_size(algorithm, topology, collective);
  if (!schedule.ok()) return schedule.status();
  const auto simulation = simulate(*schedule);
  if (!simulation.ok()) return simulation.status();
  const auto network = static_cast<std::size_t>(LinkClass::network);
  const auto shared = static_cast<std::size_t>(LinkClass::shared_memory);
  const double gbyte_s =
      simulation->total_us > 0 ? static_cast<double>(collective.input_bytes()) / simulation->total_us / 1000 : 0;
  table += fmt::format("{:<24} {:>14.1f} {:>11.3f} {:>16} {:>9} {:>16} {:>9}\n", schedule->programs.front().algorithm,
                       simulation->total_us, gbyte_s, simulation->bytes[network], simulation->messages[network],
                       simulation->bytes[shared], simulation->messages[shared]);
  return {};
}

Status run(const ScheduleOptions& options) {
  const auto topology = options.topology();
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  const auto named = options.algorithm.empty() ? Result<const Algorithm*>(nullptr) : find_algorithm(options.algorithm);
  if (!named.ok()) return named.status();
  std::string table;
  for (const Algorithm& algorithm : algorithms()) {
    if (*named != nullptr ? *named != &algorithm : !algorithm.supports(*topology, *collective).ok()) continue;
    if (Status status = simulate_one(algorithm, *topology, *collective, table); !status.ok()) return status;
  }
  fmt::print("{} ({}{}) on {}, alpha-beta-gamma model\n", to_string(*collective), format_bytes(collective->input_bytes()),
             deals_in_shares(collective->kind) ? " per share" : "", topology->shape());
  fmt::print("{:<24} {:>14} {:>11} {:>16} {:>9} {:>16} {:>9}\n{}", "algorithm", "time (us)", "algbw GB/s", "network bytes",
             "messages", "node bytes", "messages", table);
  return {};
}

}  // namespace

void add_simulate_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand("simulate", "Predicts how long algorithms take and how many bytes they move");
  const auto options = std::make_shared<ScheduleOptions>();
  options->add_to(*command);
  options->add_size_to(*command);
  options->add_costs_to(*command);
#ifdef SHOAL_HAVE_SIMGRID
  const auto platform = std::make_shared<PlatformOptions>();
  platform->add_to(*command);
#endif
  add_simulate_pipeline_command(*command, exit_status);
  command->callback([=] {
    if (!command->get_subcommands().empty()) return;
#ifdef SHOAL_HAVE_SIMGRID
    const auto on_platform = platform->wanted();
    const Status status = !on_platform.ok()     ? on_platform.status()
                          : platform->published ? simulate_published()
                          : *on_platform        ? simulate_platform(*command, *options, *platform)
                                                : run(*options);
#else
    const Status status = run(*options);
#endif
    if (!status.ok()) *exit_status = report_error("simulate", status);
  });
}

}  // namespace shoal
