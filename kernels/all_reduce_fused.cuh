// all_reduce_fused: a whole all_reduce of one node in one kernel, which waits for the same kernel of the other ranks.
//
// Implements the Programs `one_shot` and `direct` (two_shot) on one node; fused.h has the phases. Only for ranks whose kernels
// are known to be resident at once: one rank on each GPU, or MPS with room for all. Elsewhere the stages run as kernels of
// their own and the streams wait between them (src/cuda/node_stage.cc). Measured range: none yet on any device.
#pragma once

#include "kernels/dispatch.h"
#include "kernels/fused.h"
#include "kernels/launch.h"

namespace shoal::kernels {

__device__ inline void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline std::uint32_t load_acquire(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

/// Announces to the blocks of the same number on all ranks that this block has reached `epoch`, and waits for theirs. False
/// where the host has cancelled the call. Thread r exchanges flags with rank r.
__device__ inline bool meet(const FusedParameters& p, std::uint32_t epoch, bool& given_up) {
  // All threads of the block have written before; the fence makes that visible to all processors before the flag is.
  __syncthreads();
  const int r = static_cast<int>(threadIdx.x);
  if (r < p.ranks) {
    const int block = static_cast<int>(blockIdx.x);
    __threadfence_system();
    store_release(p.flags[r] + flag_index(p.rank, block), epoch);
    const std::uint32_t* flag = p.flags[p.rank] + flag_index(r, block);
    unsigned spins = 0;
    // Acquire: what rank r's block wrote before its flag is seen by the reads after the barrier below.
    while (!reached(load_acquire(flag), epoch)) {
      if (++spins % 1024 == 0 && *static_cast<volatile std::uint32_t*>(p.cancelled) != 0) {
        given_up = true;
        break;
      }
    }
    __threadfence_system();
  }
  __syncthreads();
  return !given_up;
}

template <class V>
__global__ void __launch_bounds__(kThreads, 1) all_reduce_fused(const __grid_constant__ FusedParameters p) {
  constexpr std::size_t kElementBytes = sizeof(typename V::Element::Stored);
  __shared__ Fold fold;
  __shared__ bool given_up;
  const int block = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    given_up = false;
    set_fused_fold(fold, p, kElementBytes, block);
  }
  fused_give(p, kElementBytes, block, threadIdx.x, blockDim.x);
  if (!meet(p, p.epoch + 1, given_up)) return;
  fold_thread<typename V::Element, typename V::Op, V::kDivides>(fold, threadIdx.x, blockDim.x);
  if (!p.two_shot || !meet(p, p.epoch + 2, given_up)) return;
  fused_take(p, kElementBytes, block, threadIdx.x, blockDim.x);
}

template <class V>
cudaError_t launch_all_reduce_fused(const FusedParameters& p, cudaStream_t stream, Launch how) {
  if (how == Launch::load) {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, all_reduce_fused<V>);
  }
  all_reduce_fused<V><<<p.blocks, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace shoal::kernels
