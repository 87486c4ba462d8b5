// What CUDA offers on this machine, for people.
#pragma once

#include <string>

#include "src/cuda/cuda_api.h"

namespace shoal::cuda {

/// One line: driver, devices, how ranks reach each other's memory, MPS. Errors: those of `api`.
Result<std::string> summary_of(CudaApi& api);
/// That of this machine, or why there is none: "cuda: ...".
std::string cuda_summary();

}  // namespace shoal::cuda
