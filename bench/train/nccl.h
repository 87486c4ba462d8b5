// NCCL through torch's process group, as a backend to compare with on GPUs.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// A ProcessGroupNCCL over all ranks for tensors on `gpu` of this host, see use_gpu. The only deadline is `timeout`, NCCL's
/// own. Errors: those of open_cuda; system_error with NCCL's message.
Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                                                    std::chrono::milliseconds timeout);

}  // namespace shoal::train
