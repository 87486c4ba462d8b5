// Kernels of float16 and bfloat16.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_half.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

const ArithmeticKernels* float16() { return &kFloatingKernels<Float16>; }
const ArithmeticKernels* bfloat16() { return &kFloatingKernels<Bfloat16>; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(float16);
HWY_EXPORT(bfloat16);

const ArithmeticKernels& float16_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(float16)(); }
const ArithmeticKernels& bfloat16_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(bfloat16)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
