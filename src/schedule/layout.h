// ChunkLayout: which elements a chunk covers. The one place that knows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/schedule/program.h"

namespace shoal {

/// A run of bytes in one buffer.
struct ByteRange {
  std::size_t offset_bytes = 0;
  std::size_t size_bytes = 0;
};

/// Deals the elements of a message to chunks as evenly as possible: chunk i of C covers elements [i*n/C, (i+1)*n/C).
///
/// The message is the larger side of the collective: all_reduce and broadcast n = count; all_gather n = count * ranks (the
/// output), with message_chunks a multiple of ranks. The input of rank r in an all_gather is chunk 0.. of its own share, that
/// is message chunk r * (message_chunks / ranks) + i. A barrier has no elements.
class ChunkLayout {
 public:
  ChunkLayout(const Collective& collective, int ranks, int rank, std::uint32_t message_chunks);

  /// Bytes of `slice` within its buffer.
  [[nodiscard]] ByteRange bytes(const Slice& slice) const noexcept;
  /// Size of one scratch chunk: the largest message chunk, rounded up to 64 bytes.
  [[nodiscard]] std::size_t scratch_chunk_bytes() const noexcept;

 private:
  [[nodiscard]] std::size_t boundary(std::uint64_t chunk) const noexcept;  ///< bytes before message chunk `chunk`

  std::size_t elements_;
  std::size_t element_bytes_;
  std::uint32_t chunks_;
  std::uint32_t first_input_chunk_;
};

}  // namespace shoal
