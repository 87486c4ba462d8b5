// Start-up measurement of the links between the actual ranks, for the cost model.
#pragma once

#include <shoal/status.h>

#include "src/join/startup_exchange.h"
#include "src/progress/progress_engine.h"

namespace shoal {

/// Sets parts.topology's costs, the same on every rank. Rank 0 measures one link of each class that it has (latency by 8-byte
/// round trips, bandwidth by streams of tiles) and the speed of a reduction. During its round trips to another node the other
/// nodes make some as well, two by two, because in a collective all talk at once. About 25 ms at 1 Gbit/s, and bounded by
/// giving up precision on slower links (less than 200 ms down to about 10 Mbit/s), for any number of ranks. With `measure`
/// false only the defaults are agreed on. Collective. Needs the links unused so far.
Status measure_costs(StartupExchange& exchange, ProgressEngineParts& parts, bool measure);

/// Whether check sums on all payloads between nodes cost less than 3 % of the time that the wire takes.
bool check_sums_cost_little(const Topology& topology);
/// The same of packing them, which saves some 15 % of that time where they are floats.
bool packing_costs_little(const Topology& topology);

}  // namespace shoal
