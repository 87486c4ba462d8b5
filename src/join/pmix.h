// Start-up under mpirun (and srun --mpi=pmix): rank 0 publishes its store's address through the launcher's PMIx server.
#pragma once

#include <chrono>
#include <memory>

#include <shoal/status.h>
#include <shoal/store.h>

#include "src/join/job_key.h"
#include "src/join/launch.h"

namespace shoal {

/// A TCP store on a free port of rank 0, whose address is published through PMIx. libpmix is loaded at run time, so that
/// programs that never run under mpirun do not need it. Where `given` is not secret, rank 0 creates a key, which is published
/// with the address. Errors: unsupported, naming what to set instead, where there is no PMIx; mismatch where only some ranks
/// have a key; timeout where a rank does not arrive; system_error where rank 0 has no store, with rank 0's message on every
/// rank.
Result<OpenedStore> open_pmix_store(const Launch& launch, const JobKey& given, std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
