// Kernels of float32 and float64.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_float.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

const ArithmeticKernels* float32() { return &kFloatingKernels<float>; }
const ArithmeticKernels* float64() { return &kFloatingKernels<double>; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(float32);
HWY_EXPORT(float64);

const ArithmeticKernels& float32_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(float32)(); }
const ArithmeticKernels& float64_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(float64)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
