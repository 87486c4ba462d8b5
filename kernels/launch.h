// Launches of the kernels. Included by CUDA sources only; the rest of the library reaches them through src/cuda/cuda_api.h.
#pragma once

#include <cuda_runtime.h>

#include "kernels/parameters.h"

namespace shoal::kernels {

/// All return the cudaGetLastError() of the launch. Precondition: supports(p.type, p.op), counts are not 0.
cudaError_t launch(const FoldParameters& p, cudaStream_t stream);
cudaError_t launch(const CopyParameters& p, cudaStream_t stream);
cudaError_t launch(const FusedParameters& p, cudaStream_t stream);

/// Loads all kernels onto the current device.
cudaError_t load_all();

/// Whether to run a kernel, or only to load it for a later launch.
enum class Launch { run, load };

// The kernels are compiled in several files, by the types that each serves.
cudaError_t launch_fold_float(const FoldParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fold_half(const FoldParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fold_float8(const FoldParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fold_narrow(const FoldParameters& p, cudaStream_t stream, Launch how);  ///< integers of 8 and 16 bits
cudaError_t launch_fold_wide(const FoldParameters& p, cudaStream_t stream, Launch how);    ///< integers of 32 and 64 bits
cudaError_t launch_fused_float(const FusedParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fused_half(const FusedParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fused_float8(const FusedParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fused_narrow(const FusedParameters& p, cudaStream_t stream, Launch how);
cudaError_t launch_fused_wide(const FusedParameters& p, cudaStream_t stream, Launch how);

}  // namespace shoal::kernels
