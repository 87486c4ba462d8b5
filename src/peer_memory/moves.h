// Which bytes the ranks of a call copy directly between their buffers, where they reach each other's memory.
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

/// Whether such calls may use direct copies: they move much and fold nothing, and every rank knows where its peers keep the
/// data that it needs. Where they move very much, direct copies must also be measured to be faster (Topology::one_copy_gain).
/// All ranks come to the same answer.
[[nodiscard]] bool moves_serve(const Collective& collective, const Topology& topology) noexcept;

/// Whether an all_reduce whose ranks fold their shares out of the peers' memory may do so wherever that memory lies: where two
/// copies per byte by the kernel were measured to be faster than four by the ranks. All ranks come to the same answer.
[[nodiscard]] bool fold_reaches_all(const Collective& collective, const Topology& topology) noexcept;

/// The part of `rank`. All parts together fill every output, each byte once, and copies of different ranks are independent. A
/// rank that would have little to copy helps its peers: both ends of a broadcast, gather or scatter can do it. Precondition:
/// moves_serve().
[[nodiscard]] std::vector<PeerMemoryMove> peer_memory_moves(const Collective& collective, int ranks, int rank);

}  // namespace shoal
