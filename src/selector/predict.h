// How long an algorithm will take, quickly enough to ask for every one before a call.
#pragma once

#include "src/algorithms/algorithm.h"

namespace shoal {

/// Predicted microseconds of `collective` by `algorithm`. Small schedules are simulated (simulate.h); larger ones are
/// estimated from the Programs of a few ranks, in time proportional to the length of a Program.
/// Pure: every rank gets the same number from the same arguments. Precondition: algorithm.supports() is ok.
double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// The estimate alone: latency along the longest chain of hops plus the time for which the busiest port or core is needed.
/// Assumes that a peer sends when this rank sends what corresponds to it, which holds for the symmetric collectives only.
double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

}  // namespace shoal
