// The wire format of rails transports: packets and the two handshake records, little-endian and of fixed size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "src/trust/proof.h"
#include "transports/transport.h"

namespace shoal::rails {

inline constexpr std::uint16_t kWireVersion = 4;
inline constexpr std::size_t kMaxRails = 8;
inline constexpr std::size_t kMaxPieces = 256;  ///< of one tile
inline constexpr std::size_t kMaxWindow = 64;   ///< tiles in flight on a link

enum class PacketKind : std::uint8_t {
  data = 1,          ///< a piece of a tile, or all of it
  announce = 2,      ///< the header of a tile whose pieces are written into the receiver's memory
  note = 3,          ///< only the acknowledgements that every packet has
  close_notice = 4,  ///< close notice: the sender leaves in order; it has sent `position` tiles
  probe = 5,         ///< requests a note on the rail on which this packet arrived
  rail_lost = 6,     ///< the sender no longer uses its rail `position` for this link, and lets no peer write by it
  retransmit = 7,    ///< the tile `position` arrived with a wrong checksum: requests all of it again
};

/// The header of every message after the handshake. `released`, `arrived`, `arrived_after` and `arrivals` are about the
/// opposite direction of the link.
struct Packet {
  PacketKind kind = PacketKind::data;
  std::uint16_t link = 0;                           ///< number of the link at the receiver
  std::uint64_t token = 0;                          ///< identifies the link where the other bytes are damaged; not secret
  std::uint64_t released = 0;                       ///< tiles below this number are released: there is room for as many more
  std::uint64_t arrived = 0;                        ///< tiles below this number have arrived
  std::uint64_t arrived_after = 0;                  ///< bit i: tile arrived + 1 + i has arrived as well
  std::array<std::uint32_t, kMaxRails> arrivals{};  ///< by rail, modulo 2^32: pieces and announcements that have arrived on it
  std::uint32_t sent_us = 0;                        ///< time of these counts by the sender's clock, in us, modulo 2^32
  std::uint64_t position = 0;                       ///< of the tile on its link
  TileHeader tile;
  std::uint32_t piece = 0;
  std::uint32_t pieces = 1;
  bool has_checksum = false;
  std::uint32_t checksum = 0;  ///< where `has_checksum`: the CRC-32C of the whole tile's payload

  bool operator==(const Packet&) const = default;
};
inline constexpr std::size_t kPacketBytes = 128;

/// Key of one direction of a link, derived from the job's key and the nonces of the handshake.
struct PacketKey {
  std::uint64_t token = 0;             ///< travels in the clear
  std::array<std::byte, 16> secret{};  ///< authenticates each packet and its position: SipHash-2-4 over all of it
};
/// Only holders of the job's key can compute it, and no other handshake has the same one.
[[nodiscard]] PacketKey make_packet_key(const Key& key, const Nonce& sender, const Nonce& receiver) noexcept;

void encode(const Packet& packet, const PacketKey& key, std::span<std::byte, kPacketBytes> bytes) noexcept;
/// Empty where the bytes are no valid packet: not authenticated by that key, a wrong kind, a piece or size out of range.
[[nodiscard]] std::optional<Packet> decode_packet(std::span<const std::byte, kPacketBytes> bytes, const PacketKey& key,
                                                  std::size_t max_tile_bytes) noexcept;
/// Repairs a packet in which one bit was flipped in transit, by trying all bits. Empty where more bits were flipped. Takes
/// 0.1 ms: only for bytes that carry the token of a link, except for one bit.
[[nodiscard]] std::optional<Packet> repair_packet(std::span<const std::byte, kPacketBytes> bytes, const PacketKey& key,
                                                  std::size_t max_tile_bytes) noexcept;
/// The bytes at the positions of the link and of the token, unchecked.
[[nodiscard]] std::uint16_t link_in(std::span<const std::byte, kPacketBytes> bytes) noexcept;
[[nodiscard]] std::uint64_t token_in(std::span<const std::byte, kPacketBytes> bytes) noexcept;

/// Where the pieces of a tile start: equal parts, rounded up to cache lines.
struct Extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] Extent piece_extent(std::size_t tile_bytes, std::uint32_t pieces, std::uint32_t piece) noexcept;

/// The 32 bits that arrive with a written piece.
struct Immediate {
  std::uint16_t link = 0;      ///< below kMaxImmediateLinks
  std::uint16_t position = 0;  ///< of the tile, modulo kImmediatePositions
  std::uint8_t piece = 0;
};
inline constexpr std::size_t kMaxImmediateLinks = 4096;
inline constexpr std::uint64_t kImmediatePositions = 4096;
[[nodiscard]] std::uint32_t to_bits(const Immediate& immediate) noexcept;
[[nodiscard]] Immediate to_immediate(std::uint32_t data) noexcept;

enum class RecordKind : std::uint16_t {
  hello = 1,   ///< sent until the peer answers
  answer = 2,  ///< answers one hello: covers both nonces
};

/// A handshake record. Each side sends its own values; the receiver checks whether they match its own.
struct Record {
  RecordKind kind = RecordKind::hello;
  std::uint16_t version = kWireVersion;
  std::uint32_t from_rank = 0;
  std::uint32_t to_rank = 0;
  std::uint32_t size = 0;
  std::uint64_t job_id = 0;
  std::uint32_t tile_bytes = 0;
  std::uint32_t window = 0;
  std::uint32_t stripe_bytes = 0;
  std::uint32_t piece_bytes = 0;  ///< largest payload for which its receives have room
  std::uint32_t write_from = 0;   ///< larger tiles may be written to its slots; 0 = the sender has no slots
  std::uint16_t rails = 0;
  std::uint16_t link = 0;  ///< number of the link at the sender
  std::uint64_t host = 0;  ///< identifies host and process namespace
  std::uint64_t process = 0;
  Nonce nonce{};
  Nonce peer_nonce{};  ///< in an answer: nonce of the receiver
  struct Slots {
    std::uint64_t base = 0;
    std::uint64_t key = 0;
    bool operator==(const Slots&) const = default;
  };
  std::array<Slots, kMaxRails> slots{};  ///< where the peer may write, by rail

  bool operator==(const Record&) const = default;
};
inline constexpr std::size_t kRecordBytes = 288;
using RecordBytes = std::array<std::byte, kRecordBytes>;

[[nodiscard]] RecordBytes encode(const Record& record, const Key& key) noexcept;
/// Empty where the bytes are no record. Checks neither version nor proof.
[[nodiscard]] std::optional<Record> decode_record(std::span<const std::byte, kRecordBytes> bytes) noexcept;
[[nodiscard]] bool is_proven(std::span<const std::byte, kRecordBytes> bytes, const Key& key) noexcept;
/// Whether a message is a record, by its first bytes.
[[nodiscard]] bool looks_like_record(std::span<const std::byte> message) noexcept;

}  // namespace shoal::rails
