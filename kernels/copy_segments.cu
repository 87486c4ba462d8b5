// copy_segments: copies several runs of bytes, whose places the device looks up; and the choice of the file that holds a fold.
//
// Implements the copy and recv steps of a Program whose data lies in peers' memory: the all-gather half of `direct` (two_shot),
// and the step by which a rank lays its input where the others read it. A block goes through all segments, so that all peers'
// links are in use at once. Measured range: none yet on any device.
#include "kernels/launch.h"
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {
namespace {

__global__ void __launch_bounds__(kThreads) copy_segments(const __grid_constant__ CopyParameters p) {
  __shared__ const std::byte* sources[kMaxPeers];
  __shared__ bool cancelled;
  if (threadIdx.x == 0) cancelled = is_cancelled(p.cancelled);
  if (threadIdx.x < static_cast<unsigned>(p.segment_count)) {
    sources[threadIdx.x] = resolve(p.segments[threadIdx.x].source);
  }
  __syncthreads();
  if (cancelled) return;
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (int s = 0; s < p.segment_count; ++s) {
    copy_thread(p.segments[s].target, sources[s], p.segments[s].bytes, thread, threads);
  }
}

}  // namespace

cudaError_t launch(const CopyParameters& p, cudaStream_t stream) {
  std::size_t longest = 0;
  for (int s = 0; s < p.segment_count; ++s) longest = p.segments[s].bytes > longest ? p.segments[s].bytes : longest;
  copy_segments<<<blocks_for(longest, p.max_blocks), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch(const FoldParameters& p, cudaStream_t stream) {
  switch (p.type) {
    case DataType::float32:
    case DataType::float64:
      return launch_fold_float(p, stream);
    case DataType::float16:
    case DataType::bfloat16:
      return launch_fold_half(p, stream);
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return launch_fold_float8(p, stream);
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
      return launch_fold_narrow(p, stream);
    default:
      return launch_fold_wide(p, stream);
  }
}

cudaError_t launch(const FusedParameters& p, cudaStream_t stream) {
  switch (p.type) {
    case DataType::float32:
    case DataType::float64:
      return launch_fused_float(p, stream);
    case DataType::float16:
    case DataType::bfloat16:
      return launch_fused_half(p, stream);
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return launch_fused_float8(p, stream);
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
      return launch_fused_narrow(p, stream);
    default:
      return launch_fused_wide(p, stream);
  }
}

}  // namespace shoal::kernels
