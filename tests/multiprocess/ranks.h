// Real ranks for tests: forked processes that make a Communicator over a file store.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include <shoal/communicator.h>

namespace shoal::testing {

/// What became of one rank.
struct RankOutcome {
  pid_t pid = -1;
  bool killed = false;  ///< by a signal
  int code = -1;        ///< exit code, or the signal's number
  std::string output;   ///< what the body returned: empty = success
};

/// Runs in a child process; an empty string is success. `directory` is shared by the ranks of one run and empty at the start.
using RankBody = std::function<std::string(int rank, int size, const std::string& directory)>;

/// Forks `size` ranks, waits for all (at most `seconds`; then kills them and says so), returns their outcomes by rank.
std::vector<RankOutcome> run_ranks(int size, const RankBody& body, double seconds = 60);

/// As run_ranks with a Communicator made over a file store in the directory; expects every rank to return an empty string.
void expect_ranks(int size, const CommunicatorOptions& options,
                  const std::function<std::string(Communicator& communicator)>& body, double seconds = 60);

/// Makes the Communicator of `rank` over a file store in `directory`.
Result<std::unique_ptr<Communicator>> join(const std::string& directory, int rank, int size,
                                           const CommunicatorOptions& options);

}  // namespace shoal::testing
