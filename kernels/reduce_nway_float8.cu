// reduce_nway of the floats of 8 bits.
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {

cudaError_t launch_fold_float8(const FoldParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_reduce_nway<decltype(variant)>(p, stream, how); };
  return p.type == DataType::float8_e4m3fn ? visit_floating<Float8E4M3Fn>(p.op, p.divisor, launch)
                                           : visit_floating<Float8E5M2>(p.op, p.divisor, launch);
}

}  // namespace shoal::kernels
