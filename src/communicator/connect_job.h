// The start-up of a communicator: from a Store to connected links.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>
#include <shoal/store.h>

#include "src/communicator/job_config.h"
#include "src/join/job_key.h"
#include "src/runtime/executor.h"
#include "src/selector/tuning.h"

namespace shoal {

/// The parts of a communicator, and what its Selector uses besides the Topology.
struct ConnectedJob {
  std::shared_ptr<Executor> executor;
  std::string transports;  ///< all that are in use between the ranks: transports_between()
  Numerics numerics = Numerics::by_class;
  std::optional<TunedShape> tuned;  ///< measured times of rank 0's table, if it covers these ranks
  int most_links = 0;               ///< see select()
};

/// Determines the node of each rank, chooses a transport for every pair of ranks, connects them, measures the links, and
/// registers the result with the progress thread. Collective over the ranks of `store` (null for a job of one rank). Rank 0's
/// algorithm, transports and settings apply to all ranks; its algorithm is written back to `options`. The links authenticate
/// with a key that is derived from `key`, the job's key, and from what rank 0 publishes in the store. `job` is the user's name
/// of the job, for its flight record. Ends by `deadline`. Errors name the missing rank; invalid_argument where
/// traffic is to be encrypted and the key is not secret.
Result<ConnectedJob> connect_job(Store* store, int rank, int size, const JobKey& key, const std::string& job,
                                 std::chrono::steady_clock::time_point deadline, CommunicatorOptions& options);

}  // namespace shoal
