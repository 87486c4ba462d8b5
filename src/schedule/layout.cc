#include "src/schedule/layout.h"

#include <algorithm>
#include <numeric>

namespace shoal {
namespace {

enum class Extent : std::uint8_t { none, share, whole };

struct Extents {
  Extent input;
  Extent output;
};

Extents parts_of(const Collective& collective, int rank) noexcept {
  const bool at_root = rank == collective.root;
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::all_to_all:
      return {Extent::whole, Extent::whole};
    case CollectiveKind::broadcast:
    case CollectiveKind::barrier:
      return {Extent::none, Extent::whole};
    case CollectiveKind::all_gather:
      return {Extent::share, Extent::whole};
    case CollectiveKind::reduce_scatter:
      return {Extent::whole, Extent::share};
    case CollectiveKind::reduce:
      return {Extent::whole, at_root ? Extent::whole : Extent::none};
    case CollectiveKind::gather:
      return {Extent::share, at_root ? Extent::whole : Extent::none};
    case CollectiveKind::scatter:
      return {at_root ? Extent::whole : Extent::none, Extent::share};
    case CollectiveKind::send:
    case CollectiveKind::receive:
      break;
  }
  return {Extent::none, Extent::none};
}

/// chunk * elements / chunks without overflow: both remainders are below 2^32.
std::size_t elements_before(std::uint64_t chunk, std::size_t elements, std::uint32_t chunks) noexcept {
  return chunk * (elements / chunks) + chunk * (elements % chunks) / chunks;
}

std::vector<std::size_t> starts_of(std::span<const std::size_t> sizes) {
  std::vector<std::size_t> starts{0};
  for (const std::size_t size : sizes) starts.push_back(starts.back() + size);
  return starts;
}

}  // namespace

ChunkRun chunks_in(const Collective& collective, Buffer buffer, int ranks, int rank, std::uint32_t message_chunks) noexcept {
  const Extents parts = parts_of(collective, rank);
  const Extent part = buffer == Buffer::input ? parts.input : parts.output;
  if (part == Extent::whole) return {0, message_chunks};
  if (part == Extent::none) return {0, 0};
  const std::uint32_t share = message_chunks / static_cast<std::uint32_t>(ranks);
  return {static_cast<std::uint32_t>(rank) * share, share};
}

std::size_t share_offset_bytes(const Collective& collective, int ranks, int rank) noexcept {
  if (!deals_in_shares(collective.kind) || ranks <= rank) return 0;
  const auto before = static_cast<std::size_t>(rank);
  if (collective.counts.empty()) return before * collective.input_bytes();
  const auto counts = collective.counts.first(before);
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0}) * size_of(collective.type);
}

ChunkLayout::ChunkLayout(const Collective& collective, int ranks, int rank, std::uint32_t message_chunks)
    : elements_(collective.count), element_bytes_(size_of(collective.type)), chunks_(std::max(message_chunks, 1U)) {
  const auto shares = static_cast<std::size_t>(ranks);
  if (collective.kind == CollectiveKind::barrier) elements_ = 0;
  for (const Buffer buffer : {Buffer::input, Buffer::output}) {
    first_chunk_[static_cast<std::size_t>(buffer)] = chunks_in(collective, buffer, ranks, rank, chunks_).first;
  }
  std::size_t cut = elements_;  // the largest extent that is cut evenly, and into how many chunks
  std::uint32_t pieces = chunks_;
  if (deals_in_shares(collective.kind)) {
    chunks_per_share_ = pieces = std::max(chunks_ / static_cast<std::uint32_t>(ranks), 1U);
    if (collective.counts.empty()) {
      elements_ *= shares;
    } else {
      const bool two_messages = collective.kind == CollectiveKind::all_to_all;
      share_starts_[0] = starts_of(collective.counts.first(shares));
      share_starts_[1] = two_messages ? starts_of(collective.counts.subspan(shares, shares)) : share_starts_[0];
      cut = *std::ranges::max_element(collective.counts);
    }
  }
  chunk_elements_ = elements_ / chunks_;
  spare_elements_ = elements_ % chunks_;
  largest_chunk_bytes_ = (cut / pieces + (cut % pieces != 0 ? 1 : 0)) * element_bytes_;
}

ByteRange ChunkLayout::bytes(const Slice& slice) const noexcept {
  const std::size_t size = size_bytes(slice);
  if (slice.buffer == Buffer::scratch) return {slice.first_chunk * largest_chunk_bytes_, size};
  const std::uint64_t shift = first_chunk_[static_cast<std::size_t>(slice.buffer)];
  return {boundary(slice.buffer, shift + slice.first_chunk) - boundary(slice.buffer, shift), size};
}

std::size_t ChunkLayout::size_bytes(const Slice& slice) const noexcept {
  const bool in_scratch = slice.buffer == Buffer::scratch;
  const Buffer like = in_scratch ? Buffer::input : slice.buffer;
  const std::uint64_t first =
      in_scratch ? slice.holds : std::uint64_t{first_chunk_[static_cast<std::size_t>(like)]} + slice.first_chunk;
  return boundary(like, first + slice.chunk_count) - boundary(like, first);
}

std::size_t ChunkLayout::boundary(Buffer buffer, std::uint64_t chunk) const noexcept {
  const auto& starts = share_starts_[static_cast<std::size_t>(buffer)];
  if (starts.empty()) {
    const std::size_t spare = spare_elements_ == 0 ? 0 : chunk * spare_elements_ / chunks_;
    return (chunk * chunk_elements_ + spare) * element_bytes_;
  }
  const std::uint64_t share = chunk / chunks_per_share_;
  const std::uint64_t rest = chunk % chunks_per_share_;
  if (rest == 0) return starts[share] * element_bytes_;
  return (starts[share] + elements_before(rest, starts[share + 1] - starts[share], chunks_per_share_)) * element_bytes_;
}

}  // namespace shoal
