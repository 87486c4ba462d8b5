// Start-up measurement of the links between the actual ranks, for the cost model.
#pragma once

#include <chrono>

#include <shoal/status.h>
#include <shoal/store.h>

#include "src/engine/executor.h"

namespace shoal {

/// Sets parts.topology's costs, the same on every rank. Rank 0 measures one link of each class that it has (latency by 8-byte
/// round trips, bandwidth by a stream of tiles) and the speed of a reduction, each for a few tens of milliseconds at most,
/// while the others sleep; with `measure` false only the defaults are agreed on. Collective. Needs the links unused so far.
Status measure_costs(Store& store, ExecutorParts& parts, bool measure, std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
