// From a Store to links: how a communicator comes about.
#pragma once

#include <memory>

#include <shoal/communicator.h>
#include <shoal/status.h>
#include <shoal/store.h>

#include "src/engine/executor.h"

namespace shoal {

/// Finds out who is where, chooses a transport for every pair of ranks, connects, measures the links, and registers the result
/// with the progress thread. Collective over the ranks of `store` (null for a job of one). Rank 0's algorithm, transports and
/// tuning count for everybody and are written back to `options`. Takes at most options.timeout; errors name the rank that is
/// missing.
Result<std::shared_ptr<Executor>> wire_up(Store* store, int rank, int size, CommunicatorOptions& options);

}  // namespace shoal
