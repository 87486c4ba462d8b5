// Hands file descriptors from each rank of a node to the others.
#pragma once

#include <chrono>
#include <vector>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::cuda {

/// Collective over `node`. Gives `own` (-1: nothing) to every other rank; `givers` says of each rank whether it gives
/// something, the same on all. Returns the descriptors of the other ranks; those of ranks that give nothing are empty. Goes
/// over Unix sockets, so that no rank needs permission to access another process. Errors: unsupported where ranks cannot reach
/// each other's sockets (containers with networks of their own); this error may differ between ranks, so the callers must
/// compare results. Otherwise those of a barrier: a rank that has died, or is late.
Result<std::vector<Descriptor>> hand_around(Communicator& node, int own, const std::vector<bool>& givers,
                                            std::chrono::milliseconds timeout);

}  // namespace shoal::cuda
