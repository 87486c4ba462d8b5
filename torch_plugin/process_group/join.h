// Joins a LibTorch program to its job as a rank, without Python.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

/// A process group over all ranks of the job that the environment describes (`shoal run`, mpirun, torchrun, srun), or of only
/// this process if it describes none; for DataParallel and other users of a process group in LibTorch. Collective. `options`
/// may be null: then those of the environment, including its timeout. Throws c10::DistBackendError if a rank does not join in
/// time.
c10::intrusive_ptr<c10d::ProcessGroup> join_job(c10::intrusive_ptr<ProcessGroupShoal::Options> options = nullptr);

/// A c10d store that all ranks of `communicator` share: rank 0 serves it on a port that the system picks, only at its
/// own_address(). The store does not authenticate clients: see README.md. Collective. Errors: those of the communicator, and
/// system_error if the store cannot be served or reached.
Result<c10::intrusive_ptr<c10d::Store>> open_store(Communicator& communicator, std::chrono::milliseconds timeout);

}  // namespace shoal::torch
