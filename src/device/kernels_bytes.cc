// Kernels that work on bytes: the bitwise operations and the streaming copy.
#include "src/device/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/device/kernels_bytes.cc"
#include <hwy/foreach_target.h>  // includes this file once per further target

#include "src/device/fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::host::HWY_NAMESPACE {

inline constexpr ByteKernels kByteKernels{kernel<std::uint8_t, Band>, kernel<std::uint8_t, Bor>, kernel<std::uint8_t, Bxor>,
                                          stream_bytes};
const ByteKernels* bytes() { return &kByteKernels; }

}  // namespace shoal::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::host {

HWY_EXPORT(bytes);

const ByteKernels& byte_kernels() noexcept { return *HWY_DYNAMIC_DISPATCH(bytes)(); }

}  // namespace shoal::host
#endif  // HWY_ONCE
