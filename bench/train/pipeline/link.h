// The link between neighbouring stages: what a message over a cut costs the partitioner.
#pragma once

#include <shoal/communicator.h>

#include "bench/train/pipeline/choices.h"
#include "src/pipeline/layout.h"
#include "src/pipeline/stage_cost.h"

namespace shoal::train {

/// The link that the options give. What they do not give is measured between the ranks of neighbouring stages, in all pipelines
/// at once, as the messages of training: the longest latency and the lowest rate, the same on all ranks. It takes some
/// milliseconds, on slow links some tens. Free where there is one stage. `wraps`: the last stage also sends to the first one,
/// as the schedule virtual does. Collective. Errors: those of the communicator.
Result<pipeline::Link> find_link(Communicator& all, const pipeline::Layout& layout, bool wraps, const PipelineChoices& choices);

}  // namespace shoal::train
