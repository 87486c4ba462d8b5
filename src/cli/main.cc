// The `shoal` command.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "src/cli/commands.h"

namespace {

/// Reports a first argument that is not a command; the parser would only report that a command is missing.
bool report_unknown_command(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  std::string known;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[1]) return false;
    known += " " + command->get_name();
  }
  fmt::print(stderr, "shoal: unknown command '{}'; commands:{} (see shoal --help)\n", argv[1], known);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("shoal: collective communication for gradients that cross a slow network");
  app.name("shoal");
  app.require_subcommand(1);
  int exit_status = 0;
  shoal::add_run_command(app, &exit_status);
  shoal::add_verify_command(app, &exit_status);
  shoal::add_explain_command(app, &exit_status);
  shoal::add_tune_command(app, &exit_status);
  shoal::add_simulate_command(app, &exit_status);
  shoal::add_print_command(app, &exit_status);
  shoal::add_partition_command(app, &exit_status);
  shoal::add_topology_command(app, &exit_status);
  shoal::add_doctor_command(app, &exit_status);
  shoal::add_env_command(app, &exit_status);
  if (report_unknown_command(app, argc, argv)) return 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_status;
}
