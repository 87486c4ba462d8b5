// In which order gradients go over the wire when the next forward waits for them.
#pragma once

#include <cstddef>
#include <vector>

namespace shoal::ddp {

/// One bucket of gradients, as it was measured.
struct Transfer {
  double ready_s = 0;    ///< it can be sent from then on
  double wire_s = 0;     ///< how long the wire is busy with it
  double needed_at = 0;  ///< its place among what the next forward uses: the lowest is needed first
};

/// The order (indices into `transfers`) of list scheduling with priorities: whenever the wire is free, the ready transfer that
/// is needed first goes; where none is ready, the one that is ready next. Among equals the lowest index. A wire that is faster
/// than backward thus gets the order in which transfers become ready.
/// Sources: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019; Peng et al.,
/// "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019. Both decide while
/// they send; ranks that must make the same calls in the same order need the decision beforehand.
std::vector<std::size_t> transfer_order(const std::vector<Transfer>& transfers);

}  // namespace shoal::ddp
