// `shoal print`: a schedule as text, as a graph or as a picture.

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "src/cli/commands.h"
#include "src/cli/pipeline_tools.h"
#include "src/cli/schedule_options.h"
#include "src/schedule/printer.h"
#include "src/selector/selector.h"

namespace shoal {
namespace {

constexpr std::size_t kMaxDrawnSteps = 20'000;  // more cannot be distinguished in a picture

Status print(const ScheduleOptions& options, const std::string& format, const std::string& output) {
  const auto topology = options.topology();
  if (!topology.ok()) return topology.status();
  const auto collective = options.collective();
  if (!collective.ok()) return collective.status();
  const auto choice = select(*topology, *collective, options.algorithm, nullptr, choice_costs());
  if (!choice.ok()) return choice.status();
  const auto schedule = build_schedule_of_bounded_size(*choice->algorithm, *topology, *collective);
  if (!schedule.ok()) return schedule.status();
  std::size_t steps = 0;
  for (const Program& program : schedule->programs) steps += program.steps.size();
  if (format != "text" && steps > kMaxDrawnSteps) {
    return {StatusCode::invalid_argument,
            fmt::format("{} steps are too many for a picture (at most {}); use fewer ranks or a smaller message", steps,
                        kMaxDrawnSteps)};
  }
  const std::string text = format == "text"  ? print_text(*schedule)
                           : format == "dot" ? print_dot(*schedule)
                                             : print_svg(*schedule);
  return write_output(output, text);
}

}  // namespace

void add_print_command(CLI::App& app, int* exit_status) {
  auto* command = app.add_subcommand("print", "Shows a schedule as text, DOT (Graphviz) or SVG");
  const auto options = std::make_shared<ScheduleOptions>();
  const auto format = std::make_shared<std::string>("text");
  const auto output = std::make_shared<std::string>();
  options->size = "4KiB";  // large messages have more lanes than a picture can show
  options->add_to(*command);
  options->add_size_to(*command);
  command->add_option("--format,-f", *format, "text, dot or svg")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "dot", "svg"}));
  command->add_option("--output,-o", *output, "file to write (default: standard output)");
  add_print_pipeline_command(*command, exit_status);
  command->callback([command, options, format, output, exit_status] {
    if (!command->get_subcommands().empty()) return;
    const Status status = print(*options, *format, *output);
    if (!status.ok()) *exit_status = report_error("print", status);
  });
}

}  // namespace shoal
