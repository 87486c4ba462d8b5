// all_reduce_fused of float32 and float64.
#include "kernels/all_reduce_fused.cuh"

namespace shoal::kernels {

cudaError_t launch_fused_float(const FusedParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_all_reduce_fused<decltype(variant)>(p, stream, how); };
  return p.type == DataType::float64 ? visit_floating<Plain<double>>(p.op, p.divisor, launch)
                                     : visit_floating<Plain<float>>(p.op, p.divisor, launch);
}

}  // namespace shoal::kernels
