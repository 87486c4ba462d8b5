// all_reduce_fused of float16 and bfloat16.
#include "kernels/all_reduce_fused.cuh"

namespace shoal::kernels {

cudaError_t launch_fused_half(const FusedParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_all_reduce_fused<decltype(variant)>(p, stream, how); };
  return p.type == DataType::float16 ? visit_floating<Float16>(p.op, p.divisor, launch)
                                     : visit_floating<Bfloat16>(p.op, p.divisor, launch);
}

}  // namespace shoal::kernels
