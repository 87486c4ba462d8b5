// Launch: rank and job of this process, from the launcher's environment.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <shoal/status.h>
#include <shoal/store.h>

#include "src/join/job_key.h"
#include "src/join/tcp_store.h"

namespace shoal {

/// What the launcher's environment specifies for this process.
struct Launch {
  std::string launcher;  ///< "shoal run", "mpirun", "torchrun", "srun", or "none"
  int rank = 0;
  int size = 1;
  int local_rank = 0;       ///< among the ranks that the launcher has started on this host
  int local_size = 0;       ///< of those; 0: the launcher does not tell
  std::string master_host;  ///< where rank 0 serves the store; empty: to be exchanged through the launcher (PMIx)
  int master_port = 0;
  std::string job;  ///< distinguishes two jobs on one port
};

/// Looks up one variable; null where unset. Settable for tests.
using Environment = std::function<const char*(const char*)>;

/// Reads the environments of `shoal run`, mpirun, torchrun and srun, in this order (a launcher may itself run under srun);
/// without a launcher, a job of one rank. An empty variable counts as not set. Errors: invalid_argument, naming the variable
/// that is missing or malformed.
Result<Launch> detect_launch(const Environment& environment);

/// A port for rank 0's store, made of any number: from 20000 to 32767. Systems give connections ports from 32768 to 60999,
/// and a process cannot listen on a port that a connection uses, or has used within the last minute.
int port_below_connections(std::uint64_t number) noexcept;

LocalRanks local_ranks(const Launch& launch);

/// A Store, and the key of its job.
struct OpenedStore {
  std::unique_ptr<Store> store;
  JobKey key;
};

/// Opens the Store of the ranks of `launch`. The job's key is that of the settings, else one that rank 0 has created and PMIx
/// has transmitted, else one that is not secret. Errors: those of job_key() and of the store.
Result<OpenedStore> open_store(const Launch& launch, std::chrono::steady_clock::time_point deadline);

/// The first host of a Slurm node list: "node[03-07,9],x1" -> "node03", "r[1-2]n[5-6]" -> "r1n5". Empty for malformed lists.
std::string first_slurm_host(const std::string& node_list);

}  // namespace shoal
