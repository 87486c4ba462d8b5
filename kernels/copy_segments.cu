// copy_segments: copies several runs of bytes, whose places the device looks up. This file also selects the file that holds
// the kernel of a type.
//
// Implements the copy and recv steps of a Program whose data lies in peers' memory: the all-gather half of `direct`
// (two_shot), and the step by which a rank copies its input to where its peers read it. A block goes through all segments, so
// that all peers' links are in use at once. Measured range: none yet on any device.
#include "kernels/launch.h"
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {
namespace {

__global__ void __launch_bounds__(kThreads, 1) copy_segments(const __grid_constant__ CopyParameters p) {
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

cudaError_t start(const FoldParameters& p, cudaStream_t stream, Launch how) {
  switch (p.type) {
    case DataType::float32:
    case DataType::float64:
      return launch_fold_float(p, stream, how);
    case DataType::float16:
    case DataType::bfloat16:
      return launch_fold_half(p, stream, how);
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return launch_fold_float8(p, stream, how);
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
      return launch_fold_narrow(p, stream, how);
    default:
      return launch_fold_wide(p, stream, how);
  }
}

cudaError_t start(const FusedParameters& p, cudaStream_t stream, Launch how) {
  switch (p.type) {
    case DataType::float32:
    case DataType::float64:
      return launch_fused_float(p, stream, how);
    case DataType::float16:
    case DataType::bfloat16:
      return launch_fused_half(p, stream, how);
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2:
      return launch_fused_float8(p, stream, how);
    case DataType::int8:
    case DataType::uint8:
    case DataType::int16:
    case DataType::uint16:
      return launch_fused_narrow(p, stream, how);
    default:
      return launch_fused_wide(p, stream, how);
  }
}

}  // namespace

cudaError_t launch(const CopyParameters& p, cudaStream_t stream) {
  std::size_t longest = 0;
  for (int s = 0; s < p.segment_count; ++s) longest = p.segments[s].bytes > longest ? p.segments[s].bytes : longest;
  copy_segments<<<blocks_for(longest, p.max_blocks), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t launch(const FoldParameters& p, cudaStream_t stream) { return start(p, stream, Launch::run); }
cudaError_t launch(const FusedParameters& p, cudaStream_t stream) { return start(p, stream, Launch::run); }

cudaError_t load_all() {
  cudaFuncAttributes attributes{};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, copy_segments); error != cudaSuccess) return error;
  for (int type = 0; type < kDataTypeCount; ++type) {
    const bool floating = visit_variant(static_cast<DataType>(type), ReduceOp::min, 0, [](auto variant) {
      return std::is_floating_point_v<typename decltype(variant)::Element::Computed>;
    });
    for (int op = 0; op < kReduceOpCount; ++op) {
      if (floating && op >= static_cast<int>(ReduceOp::band)) continue;
      FoldParameters fold;
      FusedParameters fused;
      fold.type = fused.type = static_cast<DataType>(type);
      fold.op = fused.op = static_cast<ReduceOp>(op);
      fold.divisor = fused.divisor = fold.op == ReduceOp::avg ? 2 : 0;
      if (const cudaError_t error = start(fold, nullptr, Launch::load); error != cudaSuccess) return error;
      if (const cudaError_t error = start(fused, nullptr, Launch::load); error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace shoal::kernels
