// From a Store to links: how a communicator comes about.
#pragma once

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

/// A communicator's inside, and what its Selector goes by beside the Topology.
struct ConnectedJob {
  std::shared_ptr<Executor> executor;
  std::string transports;  ///< that the ranks use together: transports_between()
  Numerics numerics = Numerics::by_class;
  std::optional<TunedShape> tuned;  ///< measured times of rank 0's table, where it has these ranks
};

/// Finds out who is where, chooses a transport for every pair of ranks, connects, measures the links, and registers the result
/// with the progress thread. Collective over the ranks of `store` (null for a job of one). Rank 0's algorithm, transports and
/// settings count for everybody and are written back to `options`. The links prove themselves by a key that is made of `key`,
/// the job's, and of what rank 0 publishes in the store. `job` is what users call the job, for its flight record. Takes at most
/// options.timeout; errors name the rank that is missing.
/// invalid_argument where traffic is to be encrypted and the key is no secret.
Result<ConnectedJob> connect_job(Store* store, int rank, int size, const JobKey& key, const std::string& job,
                                 CommunicatorOptions& options);

}  // namespace shoal
