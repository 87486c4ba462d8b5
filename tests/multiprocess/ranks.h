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

/// What became of one rank.
struct RankOutcome {
  pid_t pid = -1;
  bool killed = false;  ///< by a signal
  bool hung = false;    ///< until its time was up: the signal was ours
  int code = -1;        ///< exit code, or the signal's number
  std::string output;   ///< what the body returned: empty = success
};

/// Why a rank has not ended well by itself, whatever its body says: killed by a signal, or another status than 0, as after a
/// sanitizer's report. Empty where it has.
std::string bad_end(const RankOutcome& outcome);
/// Expects all ranks but `killed` to have returned an empty string and ended well, and `killed` to have died by SIGKILL.
/// `note`: what they did.
void expect_all_well(const std::vector<RankOutcome>& outcomes, const std::string& note = {},
                     std::initializer_list<int> killed = {});

/// Runs in a child process; an empty string is success. `directory` is shared by the ranks of one run and empty at the start.
using RankBody = std::function<std::string(int rank, int size, const std::string& directory)>;

/// Forks `size` ranks, waits for all (at most `seconds`; then kills them and says so), returns their outcomes by rank. A rank
/// whose body has returned ends with status 0 whatever it says, or 1 where an expectation has failed in it; another status, as
/// after a sanitizer's report, or a signal other than SIGKILL and SIGSYS fails the current test. Of one that has ended with
/// status 0 before, `output` says so.
std::vector<RankOutcome> run_ranks(int size, const RankBody& body, double seconds = 60);

/// As run_ranks with a Communicator made over a file store in the directory; expects every rank to return an empty string.
void expect_ranks(int size, const CommunicatorOptions& options,
                  const std::function<std::string(Communicator& communicator)>& body, double seconds = 60);

/// Makes the Communicator of `rank` over a file store in `directory`.
Result<std::unique_ptr<Communicator>> join(const std::string& directory, int rank, int size,
                                           const CommunicatorOptions& options);

/// Why "ofi" or "ucx" cannot be tested here; empty where it can.
std::string library_complaint(const std::string& transport);

}  // namespace shoal::testing
