// Which rank holds a job up, and what to do about it.
#pragma once

#include <string>

#include "src/cli/job_view.h"

namespace shoal {

/// The problem of a job.
struct Diagnosis {
  std::string sentence;    ///< names the culprit; empty: no problem
  std::string suggestion;  ///< what to do; may be empty
};

/// Examines the flight records of the ranks of this host. Waits shorter than `wait_limit_s` are ignored.
///
/// In this order, because each cause explains the later ones: ranks that exited without closing their communicators, the first
/// recorded error, ranks that are stopped, calls that differ, the rank that is behind, data that is missing.
Diagnosis diagnose(const JobView& job, double wait_limit_s);

/// "call 12 (all_reduce float32 x 1000 sum)", with the group unless it is that of all ranks.
std::string words_for_call(const CommunicatorView& communicator, std::uint64_t sequence);
/// "rank 3", "ranks 0, 1 and 4"; of many ranks the rest is only counted.
std::string words_for_ranks(const std::vector<int>& ranks);
/// Converts a rank of the communicator to a rank of the job.
int job_rank(const CommunicatorView& communicator, int rank);

}  // namespace shoal
