// CUDA, as far as torch knows it, where somebody asks for it.
#pragma once

#include <shoal/status.h>

#include "bench/train/nccl_module.h"

namespace shoal::train {

/// What the module that is linked with torch's CUDA libraries offers.
struct CudaModule {
  CountGpus count_gpus;
  MakeNccl make_nccl;
  NcclVersion nccl_version;
};

/// Loads the module; afterwards torch knows CUDA, which it does not before (its CUDA libraries take seconds to load, so nobody
/// loads them without need). Errors: unsupported, with the reason, where this was built without CUDA's and NCCL's headers, or
/// the CUDA part of torch cannot be loaded.
Result<CudaModule> open_cuda();

/// Loads the module and makes GPU `gpu` of this host the calling thread's device. Errors: unsupported, with the reason and what
/// to do, where there is no such GPU; those of open_cuda.
Status use_gpu(int gpu);

/// Whether this host has a driver of NVIDIA's, without which nothing of the above can succeed. Quick.
bool has_cuda_driver();

}  // namespace shoal::train
