// A description of the CUDA of this machine, for users.
#pragma once

#include <string>

#include "src/cuda/cuda_api.h"

namespace shoal::cuda {

/// One line: driver, devices, how ranks reach each other's memory, MPS. Errors: those of `api`.
Result<std::string> summary_of(CudaApi& api);
/// The line for this machine, or why there is no CUDA: "cuda: ...".
std::string cuda_summary();

}  // namespace shoal::cuda
