// reduce_nway of float32 and float64.
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {

cudaError_t launch_fold_float(const FoldParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_reduce_nway<decltype(variant)>(p, stream, how); };
  return p.type == DataType::float64 ? visit_floating<Plain<double>>(p.op, p.divisor, launch)
                                     : visit_floating<Plain<float>>(p.op, p.divisor, launch);
}

}  // namespace shoal::kernels
