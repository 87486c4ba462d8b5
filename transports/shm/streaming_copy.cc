#include "transports/shm/streaming_copy.h"

#include <cstdint>
#include <cstring>

// Compiled once per instruction set; the best that the processor has is taken at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "transports/shm/streaming_copy.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::shm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void copy_past_cache(std::uint8_t* target, const std::uint8_t* source, std::size_t size_bytes) {
  const hn::ScalableTag<std::uint8_t> lanes;
  const std::size_t vector_bytes = hn::Lanes(lanes);
  const std::size_t stride = 4 * vector_bytes;
  std::size_t done = 0;
  for (; done + stride <= size_bytes; done += stride) {
    const auto a = hn::LoadU(lanes, source + done);
    const auto b = hn::LoadU(lanes, source + done + vector_bytes);
    const auto c = hn::LoadU(lanes, source + done + 2 * vector_bytes);
    const auto d = hn::LoadU(lanes, source + done + 3 * vector_bytes);
    hn::Stream(a, lanes, target + done);
    hn::Stream(b, lanes, target + done + vector_bytes);
    hn::Stream(c, lanes, target + done + 2 * vector_bytes);
    hn::Stream(d, lanes, target + done + 3 * vector_bytes);
  }
  if (done < size_bytes) std::memcpy(target + done, source + done, size_bytes - done);
  hwy::FlushStream();  // such stores are not ordered by a release store
}

}  // namespace shoal::shm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::shm {

HWY_EXPORT(copy_past_cache);

void streaming_copy(std::byte* target, const std::byte* source, std::size_t size_bytes) noexcept {
  HWY_DYNAMIC_DISPATCH(copy_past_cache)
  (reinterpret_cast<std::uint8_t*>(target), reinterpret_cast<const std::uint8_t*>(source), size_bytes);
}

}  // namespace shoal::shm
#endif
