#include "src/schedule/layout.h"

#include <algorithm>

namespace shoal {

namespace {

constexpr std::size_t kScratchAlignment = 64;  // a cache line: neighbouring chunks never share one

}  // namespace

ChunkLayout::ChunkLayout(const Collective& collective, int ranks, int rank, std::uint32_t message_chunks)
    : elements_(collective.count),
      element_bytes_(size_of(collective.type)),
      chunks_(std::max(message_chunks, 1U)),
      first_input_chunk_(0) {
  if (collective.kind == CollectiveKind::barrier) elements_ = 0;
  if (collective.kind == CollectiveKind::all_gather) {
    elements_ *= static_cast<std::size_t>(ranks);
    first_input_chunk_ = static_cast<std::uint32_t>(rank) * (chunks_ / static_cast<std::uint32_t>(ranks));
  }
}

ByteRange ChunkLayout::bytes(const Slice& slice) const noexcept {
  if (slice.buffer == Buffer::scratch) {
    return {slice.first_chunk * scratch_chunk_bytes(), slice.chunk_count * scratch_chunk_bytes()};
  }
  const std::uint64_t shift = slice.buffer == Buffer::input ? first_input_chunk_ : 0;
  const std::uint64_t first = shift + slice.first_chunk;
  const std::size_t begin = boundary(first);
  return {begin - boundary(shift), boundary(first + slice.chunk_count) - begin};
}

std::size_t ChunkLayout::scratch_chunk_bytes() const noexcept {
  const std::size_t largest = (elements_ / chunks_ + (elements_ % chunks_ != 0 ? 1 : 0)) * element_bytes_;
  return (largest + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::size_t ChunkLayout::boundary(std::uint64_t chunk) const noexcept {
  // chunk * elements / chunks without overflow: both remainders are below 2^32.
  return (chunk * (elements_ / chunks_) + chunk * (elements_ % chunks_) / chunks_) * element_bytes_;
}

}  // namespace shoal
