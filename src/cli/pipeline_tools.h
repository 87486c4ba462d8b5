// `shoal print pipeline`, `shoal explain pipeline`, `shoal simulate pipeline`.
#pragma once

namespace CLI {
class App;
}

namespace shoal {

/// Add the subcommand `pipeline` to the commands print, explain and simulate.
void add_print_pipeline_command(CLI::App& print, int* exit_status);
void add_explain_pipeline_command(CLI::App& explain, int* exit_status);
void add_simulate_pipeline_command(CLI::App& simulate, int* exit_status);

}  // namespace shoal
