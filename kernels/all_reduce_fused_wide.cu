// all_reduce_fused of the integers of 32 and 64 bits.
#include "kernels/all_reduce_fused.cuh"

namespace shoal::kernels {

cudaError_t launch_fused_wide(const FusedParameters& p, cudaStream_t stream, Launch how) {
  const auto launch = [&](auto variant) { return launch_all_reduce_fused<decltype(variant)>(p, stream, how); };
  switch (p.type) {
    case DataType::int32:
      return visit_integer<std::int32_t>(p.op, p.divisor, launch);
    case DataType::uint32:
      return visit_integer<std::uint32_t>(p.op, p.divisor, launch);
    case DataType::int64:
      return visit_integer<std::int64_t>(p.op, p.divisor, launch);
    default:
      return visit_integer<std::uint64_t>(p.op, p.divisor, launch);
  }
}

}  // namespace shoal::kernels
