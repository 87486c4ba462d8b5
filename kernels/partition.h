// Which thread, block and rank handles which elements: the index arithmetic of the kernels, the same on host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/portable.h"

namespace shoal::kernels {

/// What one load or store of a thread moves.
inline constexpr std::size_t kVectorBytes = 16;
/// Vectors of one operand that a thread has in flight at once.
inline constexpr std::size_t kUnroll = 4;
inline constexpr int kThreads = 512;  ///< of a block

/// `count` elements from an address on: single elements up to the first whole vector, whole vectors, single elements again.
struct Parts {
  std::size_t head_elements = 0;
  std::size_t vectors = 0;
  std::size_t tail_elements = 0;
};

/// Where elements are not aligned to their size there are no vectors: all elements belong to the head.
SHOAL_HOST_DEVICE Parts split_range(std::uintptr_t address, std::size_t count, std::size_t element_bytes) {
  if (address % element_bytes != 0) return {count, 0, 0};
  const std::size_t beyond = address % kVectorBytes;
  std::size_t head = beyond == 0 ? 0 : (kVectorBytes - beyond) / element_bytes;
  if (head > count) head = count;
  const std::size_t per_vector = kVectorBytes / element_bytes;
  const std::size_t vectors = (count - head) / per_vector;
  return {head, vectors, count - head - vectors * per_vector};
}

/// The place of the i-th single element, head and tail counted together.
SHOAL_HOST_DEVICE std::size_t single_element(const Parts& parts, std::size_t i, std::size_t per_vector) {
  return i < parts.head_elements ? i : i + parts.vectors * per_vector;
}

/// The share of `rank` of `count` elements: cut into equal runs of whole vectors, the last one takes what is left. Runs may be
/// empty. Vectors are counted from the beginning, so that shares of an aligned buffer are aligned.
struct Share {
  std::size_t begin = 0;
  std::size_t count = 0;
};
SHOAL_HOST_DEVICE Share share_of(std::size_t count, std::size_t element_bytes, int rank, int ranks) {
  const std::size_t per_vector = kVectorBytes / element_bytes;
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t vectors = (count + per_vector - 1) / per_vector;
  const std::size_t each = (vectors + n - 1) / n * per_vector;
  const std::size_t begin = each * static_cast<std::size_t>(rank) < count ? each * static_cast<std::size_t>(rank) : count;
  const std::size_t rest = count - begin;
  return {begin, rest < each ? rest : each};
}

/// Blocks for `bytes` of each operand: enough to give every thread its vectors, at most `max_blocks`, at least one.
SHOAL_HOST_DEVICE int blocks_for(std::size_t bytes, int max_blocks) {
  const std::size_t of_block = kVectorBytes * kUnroll * static_cast<std::size_t>(kThreads);
  const std::size_t wanted = (bytes + of_block - 1) / of_block;
  const std::size_t bound = max_blocks < 1 ? 1 : static_cast<std::size_t>(max_blocks);
  return static_cast<int>(wanted < 1 ? 1 : wanted < bound ? wanted : bound);
}

/// Whether a flag has reached `epoch`; epochs wrap.
SHOAL_HOST_DEVICE bool reached(std::uint32_t flag, std::uint32_t epoch) { return static_cast<std::int32_t>(flag - epoch) >= 0; }

}  // namespace shoal::kernels
