// The ranks that train together, and their process groups.
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

/// All ranks of the job. `control` is for all communication that is not measured: agreement, sums, barriers.
struct Job {
  std::unique_ptr<Communicator> control;
  c10::intrusive_ptr<c10d::Store> store;  ///< a private one if none was needed
  std::chrono::milliseconds timeout{};
  at::Device device = at::kCPU;  ///< the device of this rank, see device.h
  int place = 0;                 ///< this rank's number when the job began
  std::vector<int> places;       ///< of all remaining ranks

  [[nodiscard]] int rank() const { return control->rank(); }
  [[nodiscard]] int size() const { return control->size(); }
};

/// Joins the job of the environment (`shoal run`, mpirun, torchrun, srun; else one rank). Collective. With `needs_store`,
/// rank 0 serves c10d's store on a port that the system picks and sends its address over `control`. The store is for groups
/// of c10d itself (gloo, nccl): it is not authenticated, so any process that reaches it can use it. torchrun's own store is
/// not used.
Result<Job> join_job(std::chrono::milliseconds timeout, bool needs_store);

/// After a failure: reduces the job to the surviving ranks; earlier groups can no longer be used. Returns the places of the
/// lost ranks; empty if all ranks are alive. Collective over the survivors. Errors: those of Communicator::shrink, and those
/// of the loss of another rank meanwhile, after which it can be called again.
Result<std::vector<int>> shrink(Job& job);

/// Number of ranks that share this rank's cores, including itself. Emulated hosts of one machine may have separate cores, or
/// share them. Collective.
Result<int> ranks_on_these_cores(const Job& job);

/// The outcome of an action that only rank 0 takes, such as writing `path`: its own error on rank 0, on other ranks an error
/// of the same code that names rank 0. Collective.
Status of_rank_0(const Job& job, const Status& own, const std::string& path);

/// A process group of shoal over some `ranks` of the job, this one among them, for tensors on the CPU and on the job's device;
/// its rank r is ranks[r]. `name` must be unique among the groups of this rank. Only these ranks call it. Errors: those of
/// Communicator::group().
Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group_of(const Job& job, const std::vector<int>& ranks,
                                                             const std::string& name);

/// A process group over all ranks whose collectives are executed by `backend` ("shoal", "gloo", "mpi", "nccl") and recorded
/// by `clock`, for tensors on the job's device. `name` must be unique among the groups of the job. Collective. Errors:
/// invalid_argument for an unknown backend, unsupported for one that this build lacks, those of the backend if it cannot
/// start.
Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group(const Job& job, const std::string& backend, const std::string& name,
                                                          std::shared_ptr<CommClock> clock);

}  // namespace shoal::train
