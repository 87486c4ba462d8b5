// reduce_nway: folds the same elements of up to kMaxPeers sources in one pass over memory, in the order of the ranks.
//
// Implements one run of consecutive recv_reduce steps of a Program, its own operand among them: the reduce-scatter half of
// `direct` (two_shot), and all of `one_shot`. Peers' memory is read where it lies, so there is no recv step of its own.
//
// Memory bound. A thread has kUnroll vectors of 16 bytes of one source in flight; tests/cuda/library_test.py holds the
// registers to what lets a block of kThreads run. Measured range: none yet on any device.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/fold.h"
#include "kernels/launch.h"

namespace shoal::kernels {

/// Values that all threads of a block must agree on are read once: another processor may change them at any moment.
__device__ inline bool is_cancelled(const std::uint32_t* cancelled) {
  return cancelled != nullptr && *static_cast<const volatile std::uint32_t*>(cancelled) != 0;
}

/// At least one block on a multiprocessor: without this hint ptxas makes room for two, and spills registers.
template <class V>
__global__ void __launch_bounds__(kThreads, 1) reduce_nway(const __grid_constant__ FoldParameters p) {
  __shared__ Fold fold;
  __shared__ bool cancelled;
  if (threadIdx.x == 0) {
    cancelled = is_cancelled(p.cancelled);
    fold.source_count = p.source_count;
    fold.targets[0] = p.targets[0];
    fold.targets[1] = p.targets[1];
    fold.count = p.count;
    fold.divisor = p.divisor;
  }
  if (threadIdx.x < static_cast<unsigned>(p.source_count)) fold.sources[threadIdx.x] = resolve(p.sources[threadIdx.x]);
  __syncthreads();
  if (cancelled) return;
  const std::size_t thread = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  fold_thread<typename V::Element, typename V::Op, V::kDivides>(fold, thread, static_cast<std::size_t>(gridDim.x) * blockDim.x);
}

/// Launches reduce_nway for a Variant.
template <class V>
cudaError_t launch_reduce_nway(const FoldParameters& p, cudaStream_t stream, Launch how) {
  if (how == Launch::load) {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, reduce_nway<V>);
  }
  const int blocks = blocks_for(p.count * sizeof(typename V::Element::Stored), p.max_blocks);
  reduce_nway<V><<<blocks, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace shoal::kernels
