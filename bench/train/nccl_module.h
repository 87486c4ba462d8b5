// The interface between cuda.cc and the module that it loads. Only the module is linked with torch's CUDA libraries.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace shoal::train {

/// The version of NCCL whose headers were beside torch, "2.28.9".
using NcclVersion = void (*)(std::string* version);
/// The number of GPUs that torch finds on this host; `why_not` has the reason if there are none.
using CountGpus = void (*)(int* gpus, std::string* why_not);
/// Throws the exceptions of torch.
using MakeNccl = void (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                          std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Backend>* made);

inline constexpr const char* kCountGpus = "shoal_train_count_gpus";
inline constexpr const char* kMakeNccl = "shoal_train_make_nccl";
inline constexpr const char* kNcclVersion = "shoal_train_nccl_version";

}  // namespace shoal::train
