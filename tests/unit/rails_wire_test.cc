// What travels between two ends of rails: nothing that was changed is taken for what it was.
#include <gtest/gtest.h>

#include <cstring>

#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

PacketKey sample_key() {
  PacketKey key;
  key.token = 0x123456789abcdef0;
  key.secret.fill(std::byte{3});
  return key;
}

Packet sample_packet() {
  Packet packet;
  packet.kind = PacketKind::announce;
  packet.link = 513;
  packet.token = sample_key().token;
  packet.released = 7;
  packet.arrived = 9;
  packet.arrived_after = 5;
  packet.position = std::uint64_t{1} << 40;
  packet.tile = {1, 2, 3, 4000, 5};
  packet.piece = 3;
  packet.pieces = 256;
  packet.has_checksum = true;
  packet.checksum = 0xe3069283;
  packet.sent_us = 0xfffffffe;
  packet.arrivals = {1, 2, 3, 4, 5, 6, 7, ~std::uint32_t{0}};
  return packet;
}

std::array<std::byte, kPacketBytes> encoded(const Packet& packet) {
  std::array<std::byte, kPacketBytes> bytes{};
  encode(packet, sample_key(), bytes);
  return bytes;
}

TEST(RailsWire, PacketsSurviveTheRoundTrip) {
  const auto read = decode_packet(encoded(sample_packet()), sample_key(), 4000);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, sample_packet());
}

TEST(RailsWire, ChangedBitOfAPacketIsDetected) {
  const auto good = encoded(sample_packet());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bytes = good;
    bytes[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(decode_packet(bytes, sample_key(), 4000).has_value()) << "bit " << bit;
    EXPECT_EQ(repair_packet(bytes, sample_key(), 4000), sample_packet()) << "bit " << bit;
  }
}

TEST(RailsWire, TwoChangedBitsAreDetectedButNotCorrected) {
  const auto good = encoded(sample_packet());
  for (std::size_t bit = 0; bit < 8 * good.size(); bit += 5) {
    auto bytes = good;
    for (const std::size_t each : {bit, (bit * bit + 1) % (8 * good.size())}) bytes[each / 8] ^= std::byte{1} << each % 8;
    if (bytes == good) continue;
    EXPECT_FALSE(repair_packet(bytes, sample_key(), 4000).has_value()) << "bit " << bit;
  }
}

TEST(RailsWire, TokenIsReadFromDamagedPackets) {
  auto bytes = encoded(sample_packet());
  EXPECT_EQ(token_in(bytes), sample_packet().token);
  bytes[0] ^= std::byte{1};
  bytes[100] ^= std::byte{1};
  EXPECT_EQ(token_in(bytes), sample_packet().token);
}

TEST(RailsWire, PacketsOutOfRangeAreRefused) {
  EXPECT_FALSE(decode_packet(encoded(sample_packet()), sample_key(), 3999).has_value()) << "a tile that is too large";
  for (const auto& [piece, pieces] : {std::pair{0U, 0U}, {1U, 1U}, {0U, 257U}, {~0U, ~0U}}) {
    Packet packet = sample_packet();
    packet.piece = piece;
    packet.pieces = pieces;
    EXPECT_FALSE(decode_packet(encoded(packet), sample_key(), 4000).has_value()) << piece << " of " << pieces;
  }
  for (const int kind : {0, 8}) {
    Packet packet = sample_packet();
    packet.kind = static_cast<PacketKind>(kind);
    EXPECT_FALSE(decode_packet(encoded(packet), sample_key(), 4000).has_value()) << kind;
  }
}

TEST(RailsWire, PiecesCoverTheTileExactly) {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000, 4096, 262143}) {
    for (const std::uint32_t pieces : {1U, 2U, 3U, 7U, 256U}) {
      std::size_t end = 0;
      for (std::uint32_t i = 0; i < pieces; ++i) {
        const Extent extent = piece_extent(bytes, pieces, i);
        EXPECT_EQ(extent.offset, end);
        EXPECT_TRUE(extent.offset % 64 == 0 || extent.bytes == 0);
        end = extent.offset + extent.bytes;
      }
      EXPECT_EQ(end, bytes) << pieces << " pieces";
    }
  }
}

TEST(RailsWire, MarksSurviveTheRoundTrip) {
  for (const Immediate& mark : {Immediate{0, 0, 0}, Immediate{4095, 4095, 255}, Immediate{1, 2, 3}, Immediate{2048, 1, 128}}) {
    const Immediate read = to_immediate(to_bits(mark));
    EXPECT_EQ(read.link, mark.link);
    EXPECT_EQ(read.position, mark.position);
    EXPECT_EQ(read.piece, mark.piece);
  }
}

Record sample_record() {
  Record record;
  record.kind = RecordKind::answer;
  record.from_rank = 3;
  record.to_rank = 4;
  record.size = 5;
  record.job_id = ~std::uint64_t{0};
  record.tile_bytes = 65536;
  record.window = 8;
  record.rails = 2;
  record.link = 4095;
  record.nonce.fill(std::byte{1});
  record.peer_nonce.fill(std::byte{2});
  record.slots[7] = {11, 12};
  return record;
}

TEST(RailsWire, RecordsRoundTripAndProveTheirOrigin) {
  Key key;
  key.bytes.fill(std::byte{5});
  Key other = key;
  other.bytes[31] = std::byte{6};
  const RecordBytes bytes = encode(sample_record(), key);
  EXPECT_TRUE(looks_like_record(bytes));
  const auto read = decode_record(bytes);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, sample_record());
  EXPECT_TRUE(is_proven(bytes, key));
  EXPECT_FALSE(is_proven(bytes, other));
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    RecordBytes changed = bytes;
    changed[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(decode_record(changed).has_value() && is_proven(changed, key)) << "bit " << bit;
  }
}

TEST(RailsWire, PacketsAreProvenByTheKeyOfTheirDirection) {
  for (std::size_t bit = 0; bit < 128; ++bit) {
    PacketKey other = sample_key();
    other.secret[bit / 8] ^= std::byte{1} << bit % 8;
    EXPECT_FALSE(decode_packet(encoded(sample_packet()), other, 4000).has_value()) << "bit " << bit;
  }
  EXPECT_EQ(link_in(encoded(sample_packet())), sample_packet().link);
}

TEST(RailsWire, KeysOfPacketsDifferByDirectionNonceAndJob) {
  const Key key;
  Key other;
  other.bytes[7] = std::byte{1};
  Nonce one{};
  Nonce two{};
  two[0] = std::byte{1};
  const auto differ = [](const PacketKey& a, const PacketKey& b) { return a.token != b.token && a.secret != b.secret; };
  EXPECT_TRUE(differ(make_packet_key(key, one, two), make_packet_key(key, two, one)));
  EXPECT_TRUE(differ(make_packet_key(key, one, one), make_packet_key(key, one, two)));
  EXPECT_TRUE(differ(make_packet_key(key, one, two), make_packet_key(other, one, two)));
}

}  // namespace
}  // namespace shoal::rails
