// Who holds a job up, and what to do about it.
#pragma once

#include <string>

#include "src/cli/job_view.h"

namespace shoal {

/// What is wrong with a job.
struct Diagnosis {
  std::string sentence;    ///< names the culprit; empty: nothing is wrong
  std::string suggestion;  ///< what to do; may be empty
};

/// Looks at what the ranks of this host say of themselves and of the others. A wait below `patience_s` is not worth a word.
///
/// In this order, since each explains what comes after it: ranks that died without a word, the first error that a rank has
/// written down, ranks that are stopped, calls that differ, the rank that is behind, data that does not come.
Diagnosis diagnose(const JobView& job, double patience_s);

/// "call 12 (all_reduce float32 x 1000 sum)", with the group where it is not that of all ranks.
std::string words_for_call(const CommunicatorView& communicator, std::uint64_t sequence);
/// "rank 3", "ranks 0, 1 and 4"; many are counted.
std::string words_for_ranks(const std::vector<int>& ranks);
/// The rank in the job of a rank of the communicator.
int job_rank(const CommunicatorView& communicator, int rank);

}  // namespace shoal
