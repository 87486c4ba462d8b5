// The ranks that train together, and the process groups between them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>

#include "bench/train/comm_clock.h"

namespace shoal::train {

/// All ranks of the job. `control` is for everything that is not measured: agreeing, summing up, waiting for each other.
struct Job {
  std::unique_ptr<Communicator> control;
  c10::intrusive_ptr<c10d::Store> store;  ///< this rank's own where none was needed
  std::chrono::milliseconds timeout{};
  at::Device device = at::kCPU;  ///< where this rank trains, see device.h
  int place = 0;                 ///< this rank's number when the job began
  std::vector<int> places;       ///< of all that are left

  [[nodiscard]] int rank() const { return control->rank(); }
  [[nodiscard]] int size() const { return control->size(); }
};

/// Joins the job of the environment (`shoal run`, mpirun, torchrun, srun; else one rank). Collective.
/// With `needs_store`, c10d's store is served by rank 0 on a port that the system picks; `control` tells the others where. It
/// is for groups of c10d's own (gloo, nccl): anyone who reaches it can use it. torchrun's own store is not used.
Result<Job> join_job(std::chrono::milliseconds timeout, bool needs_store);

/// After a failure: the job is those who are left, and the groups of before are of no use. Returns the places of the lost;
/// nobody where all ranks are alive. Collective over those who are left. Errors: Communicator::shrink's, and those of a rank
/// that is lost meanwhile, after which it can be called again.
Result<std::vector<int>> shrink(Job& job);

/// Ranks that share this rank's cores, itself included. Emulated hosts of one machine may have cores of their own, or have them
/// together. Collective.
Result<int> ranks_on_these_cores(const Job& job);

/// What rank 0 came to with what it alone does, such as writing `path`: its own error there, elsewhere one of the same code
/// that names it. Collective.
Status of_rank_0(const Job& job, const Status& own, const std::string& path);

/// A process group over all ranks whose collectives are run by `backend` ("shoal", "gloo", "mpi", "nccl") and noted on `clock`,
/// for tensors on the job's device. `name` is its own among the groups of the job. Collective. Errors: invalid_argument for an
/// unknown backend, unsupported for one that this build lacks, what the backend says when it cannot start.
Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group(const Job& job, const std::string& backend, const std::string& name,
                                                          std::shared_ptr<CommClock> clock);

}  // namespace shoal::train
