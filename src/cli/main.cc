// The `shoal` command.
#include <CLI/CLI.hpp>

#include "src/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("shoal: collective communication for gradients that cross a slow network");
  app.name("shoal");
  app.require_subcommand(1);
  int exit_status = 0;
  shoal::add_run_command(app, &exit_status);
  shoal::add_verify_command(app, &exit_status);
  shoal::add_explain_command(app, &exit_status);
  shoal::add_simulate_command(app, &exit_status);
  shoal::add_print_command(app, &exit_status);
  shoal::add_env_command(app, &exit_status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_status;
}
