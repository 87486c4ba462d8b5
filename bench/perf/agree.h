// Small exchanges between the ranks of a benchmark, over shoal itself.
#pragma once

#include <string>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

namespace shoal::perf {

/// Every rank's `values`, by rank; all ranks must bring the same number. Collective.
Result<std::vector<std::vector<double>>> gather(Communicator& communicator, const std::vector<double>& values);

/// Every rank's `text`, by rank, truncated to 1000 bytes. Collective.
Result<std::vector<std::string>> gather_text(Communicator& communicator, const std::string& text);

/// The value of rank 0, on every rank. Collective.
Result<double> decide(Communicator& communicator, double value_of_rank_0);

/// ok if `status` is ok on every rank, else the failure of the lowest rank that failed, with its number. Collective.
Status agree(Communicator& communicator, const Status& status);

}  // namespace shoal::perf
