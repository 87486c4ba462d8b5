// Kernels of the integers of 8 and 16 bits.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_narrow.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

const ArithmeticKernels* int8() { return &kIntegerKernels<std::int8_t>; }
const ArithmeticKernels* int16() { return &kIntegerKernels<std::int16_t>; }
const ArithmeticKernels* uint8() { return &kIntegerKernels<std::uint8_t>; }
const ArithmeticKernels* uint16() { return &kIntegerKernels<std::uint16_t>; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(int8);
HWY_EXPORT(int16);
HWY_EXPORT(uint8);
HWY_EXPORT(uint16);

const ArithmeticKernels& int8_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(int8)(); }
const ArithmeticKernels& int16_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(int16)(); }
const ArithmeticKernels& uint8_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(uint8)(); }
const ArithmeticKernels& uint16_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(uint16)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
