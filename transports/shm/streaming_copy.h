// Copying past the cache.
#pragma once

#include <cstddef>

namespace shoal::shm {

/// Copies with non-temporal stores where the processor has them. They complete before any later store of this thread becomes
/// visible. Precondition: `target` is aligned to 64 bytes; no overlap. Thread-safe.
void streaming_copy(std::byte* target, const std::byte* source, std::size_t size_bytes) noexcept;

}  // namespace shoal::shm
