// The subcommands of `shoal`. Each adds itself to the parser and writes its exit status to `*exit_status`.
#pragma once

namespace CLI {
class App;
}

namespace shoal {

/// `shoal run`: starts the ranks of a job here or by ssh.
void add_run_command(CLI::App& app, int* exit_status);
/// `shoal verify`, `print`, `simulate`, `explain`: the schedule tools.
void add_verify_command(CLI::App& app, int* exit_status);
void add_print_command(CLI::App& app, int* exit_status);
void add_simulate_command(CLI::App& app, int* exit_status);
void add_explain_command(CLI::App& app, int* exit_status);
/// `shoal tune`: measures the algorithms between the ranks of a job.
void add_tune_command(CLI::App& app, int* exit_status);
/// `shoal partition`: cuts a profiled model into the stages of a pipeline.
void add_partition_command(CLI::App& app, int* exit_status);
/// `shoal doctor`: what the jobs of this host are doing, and which rank holds them up.
void add_doctor_command(CLI::App& app, int* exit_status);
/// `shoal topology`: the machine, and the devices and cores that each rank uses.
void add_topology_command(CLI::App& app, int* exit_status);
/// `shoal env`: every setting, its value and the origin of the value.
void add_env_command(CLI::App& app, int* exit_status);

}  // namespace shoal
