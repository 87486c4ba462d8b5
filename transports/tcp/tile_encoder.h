// From a tile to its frame: copied, with a checksum, packed, or left in the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "transports/common/checksum.h"
#include "transports/tcp/packing.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// Decides how payloads travel, and writes frames. Thread rule: that of the link.
class TileEncoder {
 public:
  /// `lend_from_bytes`: smaller payloads are copied even if they are lent.
  TileEncoder(bool checksums, bool packs, std::size_t lend_from_bytes)
      : checksums_(checksums), packs_(packs), lend_from_bytes_(lend_from_bytes) {}

  // For tiles that are sent from now on.
  void use_checksums() noexcept { checksums_ = true; }
  void use_packing() noexcept { packs_ = true; }

  struct Encoded {
    std::size_t frame_bytes = 0;
    bool lent = false;  ///< the frame has room for the payload, but it is still in the caller's memory
  };
  /// Writes tile number `position` to `frame`, which has room for frame_bytes(data.size()). `may_lend`: the payload may stay
  /// where it is.
  Encoded encode(std::byte* frame, std::uint64_t position, const TileHeader& header, std::span<const std::byte> data,
                 bool may_lend) noexcept;

 private:
  // After so many tiles in a row that packing makes no smaller, only every so many-th is tried until one is.
  static constexpr std::uint64_t kUnpackableTiles = 16;

  [[nodiscard]] std::size_t pack_if_useful(std::span<const std::byte> data, std::byte* target) noexcept {
    return packs_ && data.size() >= kLeastPackable ? try_to_pack(data, target) : 0;
  }
  [[nodiscard]] std::size_t try_to_pack(std::span<const std::byte> data, std::byte* target) noexcept;

  bool checksums_;
  bool packs_;
  std::size_t lend_from_bytes_;
  std::uint64_t unpackable_ = 0;  // tiles in a row that packing made no smaller
};

// Every tile passes here, so this is inlined; see tests/cost.
inline TileEncoder::Encoded TileEncoder::encode(std::byte* frame, std::uint64_t position, const TileHeader& header,
                                                std::span<const std::byte> data, bool may_lend) noexcept {
  std::byte* payload = frame + kFrameHeaderBytes;
  FrameHeader front{position, header, {}, static_cast<std::uint32_t>(pack_if_useful(data, payload))};
  const std::size_t whole = frame_bytes(front);
  // A checksum and packing touch every byte anyway. A lent payload fills its frame.
  const bool lends = may_lend && data.size() >= lend_from_bytes_ && whole == kFrameHeaderBytes + data.size() && !checksums_ &&
                     front.packed_bytes == 0;
  if (data.size() > kTinyBytes) {
    if (front.packed_bytes != 0) {
      if (checksums_) front.payload_sum = crc32c({payload, front.packed_bytes});
    } else if (checksums_) {
      front.payload_sum = copy_with_crc32c(payload, data);
    } else if (!lends) {
      copy(payload, data);
    }
    const std::size_t end = kFrameHeaderBytes + front.wire_bytes();
    std::memset(frame + end, 0, whole - end);
  }
  tcp::encode(front, data, std::span<std::byte, kFrameHeaderBytes>(frame, kFrameHeaderBytes));
  return {whole, lends};
}

}  // namespace shoal::tcp
