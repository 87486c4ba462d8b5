// Starts the processes of a job and ensures that all of them end.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shoal {

/// One process of a job.
struct JobProcess {
  std::string label;  ///< its name in messages and with --tag-output: "rank 3", "host b"
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  ///< on top of the environment of the caller
  /// If set, standard input is a pipe that carries this text and stays open until the job ends. Else it is /dev/null.
  std::optional<std::string> input;
  /// `command` reports its failures itself. Only status 255, with which ssh reports its own failures, is reported here.
  bool explains_itself = false;
};

struct JobOptions {
  double timeout_s = 0;          ///< end the job after this time; 0 = never
  double grace_s = 3;            ///< time for the other processes to end after a failure or signal; then SIGTERM, then SIGKILL
  bool tag_output = false;       ///< put "[label] " in front of every line
  bool keep_going = false;       ///< do not end the other processes when one fails
  bool ends_with_input = false;  ///< end the job when standard input is closed
};

/// Runs `processes` to their end. Each leads its own process group, which is killed with it; if this process is killed in any
/// way, all of them are killed. SIGINT, SIGTERM and SIGHUP are passed on and end the job; SIGUSR1 and SIGUSR2 are passed on.
///
/// Returns the exit status of the first process that a signal killed (128 + signal), else of the first that failed; 128 +
/// signal if a signal ended the job, 124 after the timeout, 127 if a command cannot be run, 0 if all processes succeeded.
/// Reports failed processes on standard error. Thread rule: the process must be single-threaded.
int run_job(const std::vector<JobProcess>& processes, const JobOptions& options);

}  // namespace shoal
