// Real ranks for tests: forked processes that make a Communicator over a file store.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <shoal/communicator.h>

namespace shoal::testing {

/// How one rank ended.
struct RankOutcome {
  pid_t pid = -1;
  bool killed = false;  ///< by a signal
  bool hung = false;    ///< killed by run_ranks at the time limit
  int code = -1;        ///< exit code, or the signal's number
  std::string output;   ///< what the body returned: empty = success
};

/// Why a rank has not ended with status 0, whatever its body returned: killed by a signal, or another status, as after a
/// sanitizer's report. Empty if it has.
std::string bad_end(const RankOutcome& outcome);
/// Expects all ranks but `killed` to have returned an empty string and ended with status 0, and `killed` to have died by
/// SIGKILL. `note`: for the messages.
void expect_all_well(const std::vector<RankOutcome>& outcomes, const std::string& note = {},
                     std::initializer_list<int> killed = {});

/// Runs in a child process; an empty string is success. `directory` is shared by the ranks of one run and empty at the start.
using RankBody = std::function<std::string(int rank, int size, const std::string& directory)>;

/// Forks `size` ranks, waits for all of them (at most `seconds`, then kills them), returns their outcomes by rank. A rank whose
/// body returned ends with status 0, or with 1 if an expectation failed in it. Another status, as after a sanitizer's report,
/// or a signal other than SIGKILL and SIGSYS fails the current test. If a rank ended with status 0 before its body returned,
/// `output` says so.
std::vector<RankOutcome> run_ranks(int size, const RankBody& body, double seconds = 60);

/// run_ranks with a Communicator made over a file store in the directory; expects every rank to return an empty string.
void expect_ranks(int size, const CommunicatorOptions& options,
                  const std::function<std::string(Communicator& communicator)>& body, double seconds = 60);

/// Makes the Communicator of `rank` over a file store in `directory`.
Result<std::unique_ptr<Communicator>> join(const std::string& directory, int rank, int size,
                                           const CommunicatorOptions& options);

/// Makes pidfd_open() fail in this process, as before Linux 5.3 and in some sandboxes. False if this system has no seccomp
/// filters.
bool deny_pidfd();

/// Why "ofi" or "ucx" cannot be tested here; empty if it can.
std::string library_complaint(const std::string& transport);

}  // namespace shoal::testing
