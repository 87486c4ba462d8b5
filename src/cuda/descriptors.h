// Descriptors of files handed from each rank of a node to the others.
#pragma once

#include <chrono>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::cuda {

/// Collective over `node`. Gives `own` (-1: nothing) to every other rank; `givers` says of each rank whether it gives
/// something, the same on all. The descriptors of the others, of which those who give nothing have none. Goes over Unix
/// sockets, so that neither side must be allowed to look into the other. Errors: unsupported where ranks cannot reach each
/// other's sockets (containers with networks of their own); not the same on all ranks, who must compare notes. Else those of a
/// barrier: who has died, or not come in time.
Result<std::vector<Descriptor>> hand_around(Communicator& node, int own, const std::vector<bool>& givers,
                                            std::chrono::milliseconds timeout);

}  // namespace shoal::cuda
