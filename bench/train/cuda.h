// Loads torch's CUDA support, only if it is needed.
#pragma once

#include <shoal/status.h>

#include "bench/train/nccl_module.h"

namespace shoal::train {

/// The functions of the module that is linked with torch's CUDA libraries.
struct CudaModule {
  CountGpus count_gpus;
  MakeNccl make_nccl;
  NcclVersion nccl_version;
};

/// Loads the module, after which torch supports CUDA. Not done at the start of the program, because torch's CUDA libraries
/// take seconds to load. Errors: unsupported, with the reason, if this was built without the headers of CUDA and NCCL, or if
/// the CUDA part of torch cannot be loaded.
Result<CudaModule> open_cuda();

/// Loads the module and makes GPU `gpu` of this host the calling thread's device. Errors: unsupported, with the reason and
/// what to do, if there is no such GPU; those of open_cuda.
Status use_gpu(int gpu);

/// Whether this host has an NVIDIA driver, without which the functions above cannot succeed. Quick.
bool has_cuda_driver();

}  // namespace shoal::train
