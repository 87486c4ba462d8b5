// Kernels of the floats of 8 bits.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_float8.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

/// As kernel(), with one loop for every number of operands: here the conversions take the time, not the address arithmetic.
template <typename T, class Op>
void small_kernel(std::byte* target, const std::byte* const* operands, std::size_t operand_count, std::size_t count,
                  int divisor) {
  using L = Lanes<T>;
  if (count < L::kBytes) return fold_short<L, Op>(target, operands, operand_count, count, divisor);
  fold<L, Op, 0>(target, operands, operand_count, count, divisor);
}

template <typename T>
inline constexpr ArithmeticKernels kFloat8Kernels{small_kernel<T, Sum>, small_kernel<T, Prod>, small_kernel<T, Min>,
                                                  small_kernel<T, Max>, small_kernel<T, Average>};

const ArithmeticKernels* float8_e4m3fn() { return &kFloat8Kernels<portable::Float8E4M3Fn>; }
const ArithmeticKernels* float8_e5m2() { return &kFloat8Kernels<portable::Float8E5M2>; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(float8_e4m3fn);
HWY_EXPORT(float8_e5m2);

const ArithmeticKernels& float8_e4m3fn_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(float8_e4m3fn)(); }
const ArithmeticKernels& float8_e5m2_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(float8_e5m2)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
