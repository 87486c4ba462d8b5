// Predicted time of an algorithm, cheap enough to compute for every algorithm before a call.
#pragma once

#include "src/algorithms/algorithm.h"

namespace shoal {

/// Predicted microseconds of `collective` by `algorithm`. Small schedules are simulated (simulator.h); larger ones are
/// estimated from the Programs of a few ranks, in time proportional to the length of a Program. Unequal shares are treated as
/// equal. Pure: every rank gets the same number from the same arguments. Precondition: algorithm.supports() is ok.
double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// A lower bound of predict_us() from the Program of one rank, at a small part of its cost. Precondition as there.
double least_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Only the estimate: latency along the longest chain of hops plus the busy time of the busiest port or core. Assumes that a
/// peer sends when this rank does its corresponding send, which holds only for symmetric collectives; for other collectives it
/// is a lower bound.
double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// Busy time of the busiest rank or wire in one call. It is the additional time per call if calls follow each other and ranks
/// run ahead, as is possible when data flows one way, from a root or to one. Precondition as above.
double busy_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// busy_us() without the time in which a rank only waits for a token bucket, if one shapes the links.
double work_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// The parts of a prediction. They overlap in time, so they need not add up to the whole.
struct PredictedTerms {
  double latency_us = 0;     ///< remains if bytes and arithmetic cost nothing
  double bytes_us = 0;       ///< added by moving the bytes
  double arithmetic_us = 0;  ///< added by folding them
};

/// Splits predict_us() into its parts, for display; it calls predict_us() three times. Precondition as there.
PredictedTerms predict_terms(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

}  // namespace shoal
