// How the memory for links inside a host (SHOAL_LINK_MEMORY) is divided: slots of rings and sizes of tiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "src/topology/topology.h"

namespace shoal {

inline constexpr std::size_t kLeastLinkMemory = std::size_t{1} << 20;
inline constexpr std::size_t kMostLinkMemory = std::size_t{1} << 40;
inline constexpr std::size_t kLeastTileBytes = 4096;  ///< tiles are multiples of it

/// Slots of a ring in shared memory. So many make rings larger than a core's second-level cache: a slot that the peer's cache
/// still holds is slow to write again. With many peers, other traffic evicts the slots, so that smaller rings suffice and save
/// memory.
constexpr int ring_slots(std::size_t peers) { return std::clamp(static_cast<int>(256 / peers), 4, 16); }

/// Tiles of at most `tile_bytes`, two of which fit for each peer on a host of `ranks` ranks, down to kLeastTileBytes.
constexpr std::size_t tile_that_fits(std::size_t tile_bytes, std::size_t ranks, std::size_t link_memory_bytes) {
  while (tile_bytes > kLeastTileBytes && 2 * tile_bytes * (ranks - 1) > link_memory_bytes)
    tile_bytes = std::max(kLeastTileBytes, tile_bytes / 2 / kLeastTileBytes * kLeastTileBytes);
  return tile_bytes;
}

inline std::size_t most_ranks_of_a_node(const Topology& topology) {
  std::vector<std::size_t> ranks(static_cast<std::size_t>(topology.nodes()));
  for (const int node : topology.node_of_rank) ++ranks[static_cast<std::size_t>(node)];
  return *std::ranges::max_element(ranks);
}

}  // namespace shoal
