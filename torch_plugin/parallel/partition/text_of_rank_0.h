// Texts that ranks tell each other.
#pragma once

#include <string>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

namespace shoal::parallel {

/// What rank 0 passes, on all ranks: the text, or its error. Other ranks pass anything. Collective. Errors: also those of a
/// broadcast. Thread rule: one thread.
Result<std::string> text_of_rank_0(Communicator& communicator, const Result<std::string>& own);

/// What each rank passes, by rank, on all ranks. If a rank passes an error, all ranks get that of the first such rank; the
/// message names the rank unless all ranks pass the same. Collective. Errors: also those of the gathers. Thread rule: one
/// thread.
Result<std::vector<std::string>> texts_of_ranks(Communicator& communicator, const Result<std::string>& own);

/// Whether all ranks pass ok: else the error as above. Collective, as above.
Status agree_on_outcome(Communicator& communicator, const Status& own);

}  // namespace shoal::parallel
