#include "transports/tcp/tile_encoder.h"

#include "transports/tcp/packing.h"

namespace shoal::tcp {

// Packs `data` into `target`. Returns the packed size; 0 where the tile is to be sent unpacked.
std::size_t TileEncoder::try_to_pack(std::span<const std::byte> data, std::byte* target) noexcept {
  if (unpackable_ >= kUnpackableTiles && ++unpackable_ % kUnpackableTiles != 0) return 0;
  const std::size_t packed = pack(data, {target, data.size()});
  if (packed > 0) {
    unpackable_ = 0;
  } else if (unpackable_ < kUnpackableTiles) {
    ++unpackable_;
  }
  return packed;
}

}  // namespace shoal::tcp
