// Starts the processes of a job and makes sure that they all end.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shoal {

/// One process of a job.
struct JobProcess {
  std::string label;  ///< how messages and --tag-output call it: "rank 3", "host b"
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;  ///< on top of the environment of the caller
  /// Where set: standard input is a pipe that carries this text and stays open until the job ends. Else it is /dev/null.
  std::optional<std::string> input;
  /// What `command` says about a failure is enough; only a status of 255, by which ssh reports its own failures, is worth a
  /// line.
  bool explains_itself = false;
};

struct JobOptions {
  double timeout_s = 0;  ///< end everything after so long; 0 = never
  double grace_s = 3;    ///< after a failure or signal the others may end by themselves for so long, then SIGTERM, then SIGKILL
  bool tag_output = false;       ///< put "[label] " in front of every line
  bool keep_going = false;       ///< a process that fails is no reason to end the others
  bool ends_with_input = false;  ///< end everything when standard input is closed
};

/// Runs `processes` to their end. Each leads its own process group, which is killed with it; if this process is killed in
/// whatever way, all of them are. SIGINT, SIGTERM and SIGHUP are passed on and end the job; SIGUSR1 and SIGUSR2 are passed on.
///
/// Returns the exit status of the first process that failed (128 + signal where one killed it), 128 + signal where one ended
/// the job, 124 after the timeout, 127 where a command cannot be run, 0 where all went well. Says on standard error who failed,
/// and how. Thread rule: the process must be single-threaded.
int run_job(const std::vector<JobProcess>& processes, const JobOptions& options);

}  // namespace shoal
