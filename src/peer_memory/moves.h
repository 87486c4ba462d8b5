// What the ranks of a call copy straight between their buffers, where they reach each other's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// One run of bytes that this rank copies: out of an input (of a broadcast: the root's output) into an output.
struct PeerMemoryMove {
  enum class Way : std::uint8_t {
    local,  ///< own input, own output
    read,   ///< the peer's input, own output
    write,  ///< own input, the peer's output
  };
  Way way = Way::local;
  std::uint32_t peer = 0;        ///< of read and write
  std::size_t source_bytes = 0;  ///< where it begins in the input
  std::size_t target_bytes = 0;  ///< where it begins in the output
  std::size_t size_bytes = 0;
};

/// Whether such calls may be done so: they move much and fold nothing, every rank knows where the others keep what it needs,
/// and where they move very much that was measured to be faster (Topology::one_copy_gain). All ranks come to the same answer.
[[nodiscard]] bool moves_serve(const Collective& collective, const Topology& topology) noexcept;

/// Whether an all_reduce whose ranks fold their shares out of the others' memory may do so wherever that lies: where two copies
/// of the kernel's a byte were measured to be faster than four by the ranks. All ranks come to the same answer.
[[nodiscard]] bool fold_reaches_all(const Collective& collective, const Topology& topology) noexcept;

/// The part of `rank`. All parts together fill every output, each byte once, and copies of different ranks are independent. Who
/// would have little to copy helps the others: both ends of a broadcast, gather or scatter can do it. Precondition:
/// moves_serve().
[[nodiscard]] std::vector<PeerMemoryMove> peer_memory_moves(const Collective& collective, int ranks, int rank);

}  // namespace shoal
