// Agreement: the ranks compare their options before the first step.
#pragma once

#include <string>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/runtime/options.h"

namespace shoal::parallel {

/// Collective. `refusal`: what is wrong on this rank, or "". Throws c10::ValueError with the same text on every rank: the first
/// refusal, or the first option in which the ranks differ, with both values and ranks. Throws StepError where a rank is dead,
/// or later than the timeout.
void agree_on_options(Communicator& communicator, const PipelineOptions& options, int chunks, const std::string& refusal);

}  // namespace shoal::parallel
