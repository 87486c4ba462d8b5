// all_reduce_fused of the integers of 8 and 16 bits.
#include "kernels/all_reduce_fused.cuh"

namespace shoal::kernels {

cudaError_t launch_fused_narrow(const FusedParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_all_reduce_fused<decltype(variant)>(p, stream, how); };
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
