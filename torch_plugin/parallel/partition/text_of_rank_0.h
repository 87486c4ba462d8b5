// A text that rank 0 tells the other ranks.
#pragma once

#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>

namespace shoal::parallel {

/// What rank 0 passes, on all ranks: the text, or its error. Other ranks pass anything. Collective. Errors: also those of a
/// broadcast. Thread rule: one thread.
Result<std::string> text_of_rank_0(Communicator& communicator, const Result<std::string>& own);

}  // namespace shoal::parallel
