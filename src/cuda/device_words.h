// The words of pinned memory by which the host of a rank controls its own streams and kernels.
#pragma once

#include <cstdint>

#include "kernels/parameters.h"
#include "src/cuda/device_group.h"

namespace shoal::cuda {

/// Pieces of messages that a stream has in flight at once, and so the most messages that one exchange may hold.
inline constexpr std::size_t kLaneChunks = 32;

struct DeviceGroup::Words {
  struct alignas(kernels::kFlagBytes) Word {
    std::uint32_t value;
  };
  Word cancelled;                                                    ///< 1: kernels touch nothing any more
  Word tile_done[kMaxSlots];                                         ///< number of the piece whose tile is back, plus one
  Word chunk_done[kLanes][kLaneChunks];                              ///< number of the chunk's last ended use, plus one
  const std::byte* bases[kernels::kMaxPeers][kernels::kMaxBuffers];  ///< buffers of each rank as mapped here
};

}  // namespace shoal::cuda
