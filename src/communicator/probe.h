// Start-up measurement of the links between the actual ranks, for the cost model.
#pragma once

#include <string>

#include <shoal/status.h>

#include "src/join/startup_exchange.h"
#include "src/progress/progress_engine.h"

namespace shoal {

/// Returns the text of rank 0's costs, which the next step of `exchange` brings to all ranks for read_costs(); on the other
/// ranks it is empty. Rank 0 measures one link of each class that it has (latency by 8-byte
/// round trips, bandwidth by streams of tiles) and the speed of a reduction. During its round trips to another node, pairs of
/// other nodes make round trips as well, because in a collective all nodes communicate at once. Takes about 25 ms at 1 Gbit/s,
/// for any number of ranks. On slower links precision is reduced to bound the time (less than 200 ms down to about 10 Mbit/s).
/// With `measure` false the costs are the defaults. Collective. Precondition: the links have not been used yet.
Result<std::string> measure_costs(StartupExchange& exchange, ProgressEngineParts& parts, bool measure);

/// Whether checksums of all payloads between nodes cost less than 3 % of the time on the wire.
bool check_sums_cost_little(const Topology& topology);
/// The same for packing the payloads, which saves some 15 % of the time on the wire for floats.
bool packing_costs_little(const Topology& topology);

}  // namespace shoal
