// TCP throughput between the nodes, measured in the same run: the limit that a collective is compared with.
#pragma once

#include <shoal/communicator.h>
#include <shoal/status.h>

namespace shoal::perf {

/// GB/s per node and direction. One rank of every node streams over a plain blocking socket to the next node and receives
/// from the previous one, all at the same time, so that both directions of every node's link are busy. Each node takes the
/// best of three windows of 0.1 s after a start of 0.1 s; the slowest node counts, because a ring is as fast as its slowest
/// link. 0 on one node. Collective; takes half a second. Errors: system_error or timeout on every rank, with the reason of
/// the first rank that failed.
Result<double> measure_goodput(Communicator& communicator);

}  // namespace shoal::perf
