// ReceiveWindow: pieces, order, duplicates, credits and damaged tiles, without a transport.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "transports/common/checksum.h"
#include "transports/rails/receive_window.h"

namespace shoal::rails {
namespace {

class RailsReceiveWindow : public ::testing::Test {
 protected:
  static constexpr std::size_t kTileBytes = 4096;

  RailsReceiveWindow() { EXPECT_TRUE(window_.prepare()); }
  /// Tiles of 4096 bytes have four pieces, over two rails; those of up to 1024 bytes are one piece.
  static LinkShape two_rails() {
    LinkShape shape;
    shape.tile_bytes = kTileBytes;
    shape.window = 4;
    shape.piece_bytes = kTileBytes;
    shape.stripe_bytes = 1024;
    shape.rails = 2;
    return shape;
  }
  static Packet packet_of(std::uint64_t position, std::uint32_t bytes, std::uint32_t pieces = 1, std::uint32_t piece = 0) {
    Packet packet;
    packet.position = position;
    packet.tile.sequence = static_cast<std::uint32_t>(position);
    packet.tile.size_bytes = bytes;
    packet.pieces = pieces;
    packet.piece = piece;
    return packet;
  }
  Receipt accept(const Packet& packet, std::byte value = std::byte{7}) {
    payload_.assign(piece_extent(packet.tile.size_bytes, packet.pieces, packet.piece).bytes, value);
    return window_.accept(packet, receive_, payload_);
  }
  Receipt accept_tile(std::uint64_t position) { return accept(packet_of(position, 64)); }
  Packet acknowledgement() {
    Packet packet;
    window_.acknowledge(packet);
    return packet;
  }

  const LinkShape shape_ = two_rails();
  ReceiveWindow window_{shape_};
  Receive receive_;
  std::vector<std::byte> payload_;
};

TEST_F(RailsReceiveWindow, PiecesInAnyOrderMakeOneTile) {
  for (const std::uint32_t piece : {3U, 0U, 2U}) {
    EXPECT_EQ(accept(packet_of(0, kTileBytes, 4, piece), static_cast<std::byte>(piece)).kind, Receipt::Kind::piece);
    EXPECT_EQ(accept(packet_of(0, kTileBytes, 4, piece)).kind, Receipt::Kind::ignored) << "the piece is there already";
  }
  EXPECT_EQ(window_.peek(), nullptr);
  const Receipt receipt = accept(packet_of(0, kTileBytes, 4, 1), std::byte{1});
  EXPECT_EQ(receipt.kind, Receipt::Kind::tile);
  EXPECT_FALSE(receipt.holds_receive);
  const Arrival* arrival = window_.peek();
  ASSERT_NE(arrival, nullptr);
  ASSERT_EQ(arrival->data.size(), kTileBytes);
  for (std::size_t i = 0; i < kTileBytes; ++i) ASSERT_EQ(arrival->data[i], static_cast<std::byte>(i / 1024));
}

TEST_F(RailsReceiveWindow, TilesAreShownInTheOrderOfSending) {
  EXPECT_FALSE(accept_tile(1).is_next);
  EXPECT_EQ(window_.peek(), nullptr);
  EXPECT_EQ(acknowledgement().arrived_after, 1U) << "tile 1, beyond the gap";
  EXPECT_TRUE(accept_tile(0).is_next);
  EXPECT_EQ(window_.arrived(), 2U);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(window_.has_unseen());
    ASSERT_NE(window_.peek(), nullptr);
    EXPECT_EQ(window_.peek()->header.sequence, i);
    EXPECT_FALSE(window_.has_unseen());
    EXPECT_EQ(window_.release(), &receive_) << "it held the payload";
  }
  EXPECT_EQ(window_.peek(), nullptr);
}

TEST_F(RailsReceiveWindow, TilesOutsideTheWindowAreDuplicates) {
  EXPECT_EQ(accept_tile(0).kind, Receipt::Kind::tile);
  EXPECT_EQ(accept_tile(0).kind, Receipt::Kind::duplicate) << "complete";
  window_.release();
  EXPECT_EQ(accept_tile(0).kind, Receipt::Kind::duplicate) << "released";
  EXPECT_EQ(accept_tile(5).kind, Receipt::Kind::duplicate) << "there is no room for it";
  EXPECT_EQ(accept_tile(4).kind, Receipt::Kind::tile);
}

TEST_F(RailsReceiveWindow, AcknowledgementsReportArrivalsAndReleases) {
  EXPECT_TRUE(accept_tile(0).report_due) << "a quarter of the window";
  EXPECT_FALSE(window_.owes_release());
  window_.release();
  EXPECT_TRUE(window_.owes_release());
  receive_.rail = 1;
  accept_tile(1);
  const Packet packet = acknowledgement();
  EXPECT_EQ(packet.released, 1U);
  EXPECT_EQ(packet.arrived, 2U);
  EXPECT_EQ(packet.arrivals[0], 1U);
  EXPECT_EQ(packet.arrivals[1], 1U);
  EXPECT_FALSE(window_.owes_release());
}

TEST_F(RailsReceiveWindow, DamagedTileDoesNotCountAsArrived) {
  Packet packet = packet_of(0, 64);
  packet.has_checksum = true;
  packet.checksum = crc32c(std::vector<std::byte>(64, std::byte{7}));
  for (std::uint32_t times = 1; times <= 3; ++times) {
    const Receipt receipt = accept(packet, std::byte{8});
    EXPECT_EQ(receipt.kind, Receipt::Kind::damaged);
    EXPECT_EQ(receipt.damaged, times);
    EXPECT_FALSE(receipt.holds_receive);
  }
  EXPECT_EQ(window_.damaged(), 3U);
  EXPECT_EQ(acknowledgement().arrived, 0U);
  EXPECT_EQ(accept(packet).kind, Receipt::Kind::tile);
}

TEST_F(RailsReceiveWindow, SlotsHaveThePositionsOfTheWindow) {
  EXPECT_EQ(window_.position_of(3), 3U);
  accept_tile(0);
  window_.release();
  EXPECT_EQ(window_.position_of(0), 4U);
  EXPECT_EQ(window_.position_of(1), 1U);
}

TEST(RailsReceiveWindowWrites, WritesMayArriveBeforeTheAnnouncement) {
  LinkShape shape;
  shape.tile_bytes = shape.piece_bytes = shape.max_write_bytes = 4096;
  shape.window = 4;
  shape.write_from = 512;
  ReceiveWindow window(shape);
  ASSERT_TRUE(window.prepare());
  std::fill_n(window.slots().data() + shape.slot_bytes(), 1000, std::byte{5});
  EXPECT_EQ(window.accept_write({0, 1, 0}, 0).kind, Receipt::Kind::piece);
  EXPECT_EQ(window.accept_write({0, 1, 0}, 0).kind, Receipt::Kind::ignored) << "a duplicate";
  EXPECT_EQ(window.accept_write({0, 1, 1}, 0).kind, Receipt::Kind::unexpected) << "no tile has two pieces";
  Packet packet;
  packet.kind = PacketKind::announce;
  packet.position = 1;
  packet.tile.size_bytes = 1000;
  packet.has_checksum = true;
  packet.checksum = crc32c(std::vector<std::byte>(1000, std::byte{5}));
  Receive receive;
  EXPECT_EQ(window.accept(packet, receive, {}).kind, Receipt::Kind::tile);
  packet.kind = PacketKind::data;
  EXPECT_EQ(window.accept(packet, receive, {}).kind, Receipt::Kind::unexpected) << "a tile of that size is written";
  std::fill_n(window.slots().data() + shape.slot_bytes(), 1000, std::byte{6});
  packet.kind = PacketKind::data;
  packet.position = 0;
  packet.tile.size_bytes = 0;
  packet.has_checksum = false;
  EXPECT_TRUE(window.accept(packet, receive, {}).is_next);
  window.release();
  ASSERT_NE(window.peek(), nullptr);
  EXPECT_EQ(std::ranges::count(window.peek()->data, std::byte{5}), 1000) << "the copy that was checked";
}

}  // namespace
}  // namespace shoal::rails
