// The wire format of the TCP transport: handshake records, frame headers and control records, little-endian and of fixed
// size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "src/trust/proof.h"
#include "transports/transport.h"

namespace shoal::tcp {

inline constexpr std::uint16_t kWireVersion = 8;

/// The four records of the handshake: the connecting side greets, the listening side replies, the connecting side confirms,
/// the listening side accepts. Each ends in a proof that covers it and all records before it. A greeting may have been
/// recorded earlier; a side that confirms holds the key now, since the reply contains a new nonce. A request stands alone: it
/// asks a rank that connects to its sender, and has not done so yet, to start.
enum class HelloKind : std::uint16_t { greet = 1, reply = 2, confirm = 3, accept = 4, request = 5 };

/// One handshake record. Each side sends its own values; the other side checks whether they match.
struct Hello {
  HelloKind kind = HelloKind::greet;
  std::uint16_t version = kWireVersion;
  std::uint64_t job_id = 0;
  std::uint32_t from_rank = 0;
  std::uint32_t to_rank = 0;
  std::uint32_t size = 0;     ///< ranks of the job
  std::uint16_t sockets = 0;  ///< for tiles; one more, the last, is for control records
  std::uint16_t socket_index = 0;
  std::uint16_t encryption = 0;  ///< a sum of kEncrypted and kHasAes
  std::uint16_t integrity = 0;   ///< 1: payloads have checksums
  std::uint32_t tile_bytes = 0;
  Nonce nonce{};               ///< of a greeting and a reply
  std::uint64_t received = 0;  ///< of a confirmation and an acceptance: tiles below this number have arrived on this socket

  bool operator==(const Hello&) const = default;
};
inline constexpr std::uint16_t kEncrypted = 1;
inline constexpr std::uint16_t kHasAes = 2;
inline constexpr std::size_t kHelloBytes = 96;
using HelloRecord = std::array<std::byte, kHelloBytes>;

/// `before`: the records of this handshake so far, one after the other.
[[nodiscard]] HelloRecord encode(const Hello& hello, const Key& key, std::string_view before = {}) noexcept;
/// Whether the record was made by a holder of `key`, as the next one after `before`.
[[nodiscard]] bool is_proven(const HelloRecord& record, const Key& key, std::string_view before = {}) noexcept;
/// Empty where the bytes are no handshake record (wrong magic, kind or checksum). Checks neither version nor proof.
[[nodiscard]] std::optional<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) noexcept;

/// A frame is a header, a payload, packed (packing.h) or as it is, and zeros up to the next multiple of kFrameAlignment.
/// Header and alignment are one cache line, so that payloads lie aligned in the receiver's memory however frames follow each
/// other. A tiny payload lies in the header itself, covered by its checksum.
inline constexpr std::size_t kFrameAlignment = 64;
inline constexpr std::size_t kFrameHeaderBytes = 64;
inline constexpr std::size_t kTinyBytes = 24;

/// The position of a tile on its link, counted over all sockets, and the tile's own header.
struct FrameHeader {
  std::uint64_t position = 0;
  TileHeader tile;
  std::optional<std::uint32_t> payload_sum;  ///< CRC-32C of a payload that is not tiny, where the sender adds checksums
  std::uint32_t packed_bytes = 0;            ///< size of the packed payload, which the CRC-32C covers; 0: not packed

  /// Bytes of the payload on the wire.
  [[nodiscard]] std::size_t wire_bytes() const noexcept { return packed_bytes == 0 ? tile.size_bytes : packed_bytes; }
  bool operator==(const FrameHeader&) const = default;
};

/// Bytes on the wire for a payload that takes `payload_bytes` there.
[[nodiscard]] constexpr std::size_t frame_bytes(std::size_t payload_bytes) noexcept {
  if (payload_bytes <= kTinyBytes) return kFrameHeaderBytes;
  return kFrameHeaderBytes + (payload_bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}
[[nodiscard]] inline std::size_t frame_bytes(const FrameHeader& header) noexcept { return frame_bytes(header.wire_bytes()); }
/// Where in its frame a payload of `payload_bytes` starts.
[[nodiscard]] constexpr std::size_t payload_offset(std::size_t payload_bytes) noexcept {
  return payload_bytes <= kTinyBytes ? kFrameHeaderBytes - kTinyBytes : kFrameHeaderBytes;
}

/// `payload` is read only where it is tiny. `bytes`: the start of the frame, or scratch.
void encode(const FrameHeader& header, std::span<const std::byte> payload,
            std::span<std::byte, kFrameHeaderBytes> bytes) noexcept;
/// Empty where the bytes are no frame header: wrong magic, wrong checksum, a payload above max_payload_bytes, or an
/// impossible packed size.
[[nodiscard]] std::optional<FrameHeader> decode_frame(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                                      std::size_t max_payload_bytes) noexcept;
/// Describes what is wrong with a header that decode_frame refused.
[[nodiscard]] std::string describe_bad_frame(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                             std::size_t max_payload_bytes);

/// A message between the two ends of a link, beside the tiles. Control records have a socket of their own: there they do not
/// wait behind tiles that the receiver does not take, and cannot reset a connection whose sender has left while its last
/// tiles are in flight.
struct ControlRecord {
  enum class Kind : std::uint32_t {
    acknowledge = 1,   ///< all tiles below `position` that were sent on `socket`: the sender may free them
    close_notice = 2,  ///< the sender leaves in order, do not reconnect
    flush = 3,         ///< the sender is about to leave: acknowledge now, and from now on each tile at once
  };
  Kind kind = Kind::acknowledge;
  std::uint32_t socket = 0;
  std::uint64_t position = 0;

  bool operator==(const ControlRecord&) const = default;
};
inline constexpr std::size_t kControlRecordBytes = 32;

void encode(const ControlRecord& record, std::span<std::byte, kControlRecordBytes> bytes) noexcept;
/// Empty where the bytes are no control record.
[[nodiscard]] std::optional<ControlRecord> decode_control_record(
    std::span<const std::byte, kControlRecordBytes> bytes) noexcept;

}  // namespace shoal::tcp
