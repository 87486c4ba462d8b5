// reduce_nway of float16 and bfloat16.
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {

cudaError_t launch_fold_half(const FoldParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_reduce_nway<decltype(variant)>(p, stream, how); };
  return p.type == DataType::float16 ? visit_floating<Float16>(p.op, p.divisor, launch)
                                     : visit_floating<Bfloat16>(p.op, p.divisor, launch);
}

}  // namespace shoal::kernels
