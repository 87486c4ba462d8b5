// Kernels of the integers of 32 and 64 bits.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_wide.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

const ArithmeticKernels* int32() { return &kIntegerKernels<std::int32_t>; }
const ArithmeticKernels* int64() { return &kIntegerKernels<std::int64_t>; }
const ArithmeticKernels* uint32() { return &kIntegerKernels<std::uint32_t>; }
const ArithmeticKernels* uint64() { return &kIntegerKernels<std::uint64_t>; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(int32);
HWY_EXPORT(int64);
HWY_EXPORT(uint32);
HWY_EXPORT(uint64);

const ArithmeticKernels& int32_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(int32)(); }
const ArithmeticKernels& int64_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(int64)(); }
const ArithmeticKernels& uint32_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(uint32)(); }
const ArithmeticKernels& uint64_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(uint64)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
