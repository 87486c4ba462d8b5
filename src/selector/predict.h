// How long an algorithm will take, quickly enough to ask for every one before a call.
#pragma once

#include "src/algorithms/algorithm.h"

namespace shoal {

/// Predicted microseconds of `collective` by `algorithm`. Small schedules are simulated (simulate.h); larger ones are
/// estimated from the Programs of a few ranks, in time proportional to the length of a Program.
/// Shares that differ are taken as equal. Pure: every rank gets the same number from the same arguments. Precondition:
/// algorithm.supports() is ok.
double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// The estimate alone: latency along the longest chain of hops plus the time for which the busiest port or core is needed.
/// Assumes that a peer sends when this rank sends what corresponds to it, which holds for the symmetric collectives only; it is
/// a lower bound for the others.
double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// How long the busiest rank or wire is needed for one call: what each further call takes where calls follow each other and
/// ranks run ahead, as they may where data flows one way, from a root or to one. Precondition as above.
double busy_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// busy_us() without the time in which a rank only waits for a token bucket to let its bytes pass, where one shapes the links.
double work_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

/// What a prediction is made of. The parts overlap in time, so they need not add up to the whole.
struct PredictedTerms {
  double latency_us = 0;     ///< what would remain if bytes and arithmetic were free
  double bytes_us = 0;       ///< what moving the bytes adds
  double arithmetic_us = 0;  ///< what folding them adds
};

/// Takes predict_us() apart, for people; it asks three times. Precondition as there.
PredictedTerms predict_terms(const Algorithm& algorithm, const Topology& topology, const Collective& collective);

}  // namespace shoal
