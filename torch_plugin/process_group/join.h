// How a LibTorch program becomes a rank, without Python.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

/// A process group over all ranks of the job that the environment describes (`shoal run`, mpirun, torchrun, srun), or of this
/// process alone where it describes none, for DataParallel and whatever else of LibTorch takes one. Collective.
/// `options` may be null: those of the environment, its timeout included.
/// Throws c10::DistBackendError when a rank does not come in time.
c10::intrusive_ptr<c10d::ProcessGroup> join_job(c10::intrusive_ptr<ProcessGroupShoal::Options> options = nullptr);

/// A store of c10d that all ranks of `communicator` share: rank 0 serves it on a port that the system picks, of its
/// own_address() alone. It asks nobody for a proof: see README.md. Collective.
/// Errors: the communicator's, and system_error where the store cannot be served or reached.
Result<c10::intrusive_ptr<c10d::Store>> open_store(Communicator& communicator, std::chrono::milliseconds timeout);

}  // namespace shoal::torch
