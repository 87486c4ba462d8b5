// The ranks that train together, and the process groups between them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/train/comm_clock.h"

namespace shoal::train {

/// All ranks of the job. `control` is for everything that is not measured: agreeing, summing up, waiting for each other.
struct Job {
  std::unique_ptr<Communicator> control;
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout{};

  [[nodiscard]] int rank() const { return control->rank(); }
  [[nodiscard]] int size() const { return control->size(); }
};

/// Joins the job of the environment (`shoal run`, mpirun, torchrun, srun; else one rank). Collective.
/// c10d's store is served by rank 0 on a port that the system picks; `control` tells the others where. torchrun's own store is
/// not used.
Result<Job> join_job(std::chrono::milliseconds timeout);

/// Ranks that share this rank's cores, itself included. Emulated hosts of one machine may have cores of their own, or have them
/// together. Collective.
Result<int> ranks_on_these_cores(const Job& job);

/// Where this rank trains with `backend`: on a GPU of its own with nccl, else on the processor.
at::Device device_of(const Job& job, const std::string& backend);

/// A process group over all ranks whose collectives are run by `backend` ("shoal", "gloo", "mpi", "nccl") and noted on `clock`.
/// `name` is its own among the groups of the job. Collective. Errors: invalid_argument for an unknown backend, unsupported for
/// one that this build lacks, what the backend says when it cannot start.
Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group(const Job& job, const std::string& backend, const std::string& name,
                                                          std::shared_ptr<CommClock> clock);

}  // namespace shoal::train
