// ChunkLayout: which elements a chunk covers. Only this file defines it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// A run of bytes in one buffer.
struct ByteRange {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

/// The message chunks [first, first + count) that a buffer of a rank holds: all of them, those of the rank's share, or none.
struct ChunkRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

/// The chunks that `buffer` (input or output) of `rank` holds. Buffers that a call does not use are empty: the input of a
/// broadcast or barrier, the output of a reduce or gather except at the root, the input of a scatter except at the root.
[[nodiscard]] ChunkRun chunks_in(const Collective& collective, Buffer buffer, int ranks, int rank,
                                 std::uint32_t message_chunks) noexcept;

/// Bytes before the share of `rank` in the message: the offset of its input in the output, or vice versa, when a call is in
/// place. 0 if the message is not dealt in shares.
[[nodiscard]] std::size_t share_offset_bytes(const Collective& collective, int ranks, int rank) noexcept;

/// Deals the elements of a message to chunks as evenly as possible.
///
/// If the message is not dealt in shares, chunk i of C covers elements [i*n/C, (i+1)*n/C). If it is, C is a multiple of the
/// number of ranks, the message is all shares in rank order, and every share is cut evenly into the same number of chunks.
/// Chunk 0 of a buffer is the message chunk that it begins with. In an all_to_all input and output are two messages: chunks
/// of block r of the input go to rank r, those of block r of the output come from rank r. A barrier has no elements.
class ChunkLayout {
 public:
  ChunkLayout(const Collective& collective, int ranks, int rank, std::uint32_t message_chunks);

  /// Bytes of `slice` within its buffer.
  [[nodiscard]] ByteRange bytes(const Slice& slice) const noexcept;
  /// Its size alone.
  [[nodiscard]] std::size_t size_bytes(const Slice& slice) const noexcept;
  /// Size of one scratch chunk: the largest message chunk.
  [[nodiscard]] std::size_t scratch_chunk_bytes() const noexcept { return largest_chunk_bytes_; }

 private:
  /// Bytes before message chunk `chunk`, by the sizes that hold for `buffer`.
  [[nodiscard]] std::size_t boundary(Buffer buffer, std::uint64_t chunk) const noexcept;

  std::size_t elements_;
  std::size_t element_bytes_;
  std::uint32_t chunks_;
  std::size_t chunk_elements_ = 0;  // of every chunk, rounded down: a division for each step would cost most of a prediction
  std::size_t spare_elements_ = 0;  // beyond these
  std::uint32_t chunks_per_share_ = 1;
  std::array<std::uint32_t, 2> first_chunk_;              // of input and output
  std::array<std::vector<std::size_t>, 2> share_starts_;  // in elements, of input and output; empty where shares are equal
  std::size_t largest_chunk_bytes_ = 0;
};

}  // namespace shoal
