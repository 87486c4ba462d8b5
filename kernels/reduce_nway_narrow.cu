// reduce_nway of the integers of 8 and 16 bits.
#include "kernels/reduce_nway.cuh"

namespace shoal::kernels {

cudaError_t launch_fold_narrow(const FoldParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_reduce_nway<decltype(variant)>(p, stream, how); };
  switch (p.type) {
    case DataType::int8:
      return visit_integer<std::int8_t>(p.op, p.divisor, launch);
    case DataType::uint8:
      return visit_integer<std::uint8_t>(p.op, p.divisor, launch);
    case DataType::int16:
      return visit_integer<std::int16_t>(p.op, p.divisor, launch);
    default:
      return visit_integer<std::uint16_t>(p.op, p.divisor, launch);
  }
}

}  // namespace shoal::kernels
