// NCCL, as torch drives it, as a backend to compare with: on GPUs.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// A ProcessGroupNCCL over all ranks for tensors on `gpu` of this host; afterwards torch knows CUDA, which it does not before
/// (its CUDA libraries take seconds to load, so nobody loads them without need). No deadline but `timeout`, NCCL's own.
/// Errors: unsupported, with the reason, where this was built without CUDA's and NCCL's headers, the CUDA part of torch cannot
/// be loaded, or there is no such GPU; system_error with NCCL's words.
Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                                                    std::chrono::milliseconds timeout);

}  // namespace shoal::train
