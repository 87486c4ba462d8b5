// What travels between two ofi transports: packets and the two records of the handshake, little-endian and of fixed size.
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
inline constexpr std::size_t kMaxWindow = 64;   ///< tiles under way on a link

enum class PacketKind : std::uint8_t {
  data = 1,       ///< a piece of a tile, or all of it
  announce = 2,   ///< the header of a tile whose pieces are written into the receiver's memory
  note = 3,       ///< only what every packet says of the other direction
  goodbye = 4,    ///< this end leaves in order; `position` tiles were sent
  ask = 5,        ///< a note is wanted, on the rail by which this came
  rail_lost = 6,  ///< this end uses its rail number `position` no more for this link, and lets nobody write by it
  again = 7,      ///< the tile `position` came with a wrong check sum: all of it is wanted once more
};

/// The front of every message between ranks that have met. `released`, `arrived`, `arrived_after` and `come` tell of the
/// opposite direction of the link.
struct Packet {
  PacketKind kind = PacketKind::data;
  std::uint16_t link = 0;                       ///< as the receiver counts its links
  std::uint64_t token = 0;                      ///< tells whose packet it is where the rest was changed on the way; no secret
  std::uint64_t released = 0;                   ///< tiles below have been released: there is room for as many more
  std::uint64_t arrived = 0;                    ///< tiles below have arrived
  std::uint64_t arrived_after = 0;              ///< bit i: tile arrived + 1 + i has arrived as well
  std::array<std::uint32_t, kMaxRails> come{};  ///< by rail, modulo 2^32: pieces and announcements that have come by it
  std::uint32_t sent_us = 0;                    ///< when that was so, by the sender's clock, modulo 2^32
  std::uint64_t position = 0;                   ///< of the tile on its link
  TileHeader tile;
  std::uint32_t piece = 0;
  std::uint32_t pieces = 1;
  bool summed = false;
  std::uint32_t sum = 0;  ///< where `summed`: the CRC-32C of the whole tile's payload

  bool operator==(const Packet&) const = default;
};
inline constexpr std::size_t kPacketBytes = 128;

/// Of one direction of a link, made of what both ends said when they met.
struct PacketKey {
  std::uint64_t token = 0;             ///< travels in the clear
  std::array<std::byte, 16> secret{};  ///< proves each packet, its position included: SipHash-2-4 of all of it
};
/// Who does not hold the job's key does not know it, and no other meeting has the same.
[[nodiscard]] PacketKey make_packet_key(const Key& key, const Nonce& sender, const Nonce& receiver) noexcept;

void encode(const Packet& packet, const PacketKey& key, std::span<std::byte, kPacketBytes> bytes) noexcept;
/// Empty where the bytes are no packet or make no sense: not proven by that key, a wrong kind, a piece or size out of range.
[[nodiscard]] std::optional<Packet> decode_packet(std::span<const std::byte, kPacketBytes> bytes, const PacketKey& key,
                                                  std::size_t max_tile_bytes) noexcept;
/// A packet of which one bit was changed on the way, as it was: all are tried. Empty where more was changed. Takes 0.1 ms: only
/// for bytes that bear the token of a link, but for a bit.
[[nodiscard]] std::optional<Packet> mend_packet(std::span<const std::byte, kPacketBytes> bytes, const PacketKey& key,
                                                std::size_t max_tile_bytes) noexcept;
/// What stands in the place of the link and of the token, whatever else the bytes are.
[[nodiscard]] std::uint16_t link_in(std::span<const std::byte, kPacketBytes> bytes) noexcept;
[[nodiscard]] std::uint64_t token_in(std::span<const std::byte, kPacketBytes> bytes) noexcept;

/// Where the pieces of a tile start: equal parts, rounded up to cache lines.
struct Extent {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};
[[nodiscard]] Extent piece_extent(std::size_t tile_bytes, std::uint32_t pieces, std::uint32_t piece) noexcept;

/// The 32 bits that arrive with a written piece.
struct Mark {
  std::uint16_t link = 0;      ///< below kMaxMarkedLinks
  std::uint16_t position = 0;  ///< of the tile, modulo kMarkPositions
  std::uint8_t piece = 0;
};
inline constexpr std::size_t kMaxMarkedLinks = 4096;
inline constexpr std::uint64_t kMarkPositions = 4096;
[[nodiscard]] std::uint32_t to_data(const Mark& mark) noexcept;
[[nodiscard]] Mark to_mark(std::uint32_t data) noexcept;

enum class RecordKind : std::uint16_t {
  hello = 1,   ///< a rank shows itself, until it is answered
  answer = 2,  ///< made for that hello: it covers both nonces
};

/// How two ranks meet. Each side sends its own values; whether they fit is for the other side to judge.
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
  std::uint32_t piece_bytes = 0;  ///< largest payload that its receives have room for
  std::uint32_t write_from = 0;   ///< larger tiles may be written to its slots; 0 = it has none
  std::uint16_t rails = 0;
  std::uint16_t link = 0;  ///< as its sender counts the link
  std::uint64_t host = 0;  ///< a number of host and process namespace
  std::uint64_t process = 0;
  Nonce nonce{};
  Nonce peer_nonce{};  ///< of an answer
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
/// Empty where the bytes are no record. Neither version nor proof is judged.
[[nodiscard]] std::optional<Record> decode_record(std::span<const std::byte, kRecordBytes> bytes) noexcept;
[[nodiscard]] bool is_proven(std::span<const std::byte, kRecordBytes> bytes, const Key& key) noexcept;
/// Whether a message is meant to be a record, by its first bytes.
[[nodiscard]] bool looks_like_record(std::span<const std::byte> message) noexcept;

}  // namespace shoal::rails
