// Links over rails one property at a time: strangers, settings, one rail that dies, what no completion comes for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "src/trust/refusals.h"
#include "tests/mentions.h"
#include "tests/ofi/hand_peer.h"
#include "tests/unit/rails_support.h"
#include "transports/common/checksum.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

using shoal::testing::Mentions;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Faults;
using testing::HandPeer;
using ::testing::HasSubstr;
using testing::MemoryFabric;
using testing::MemoryNetwork;
using testing::MemoryRailOptions;
using testing::Pair;

/// Somebody on the same network who is no rank.
class Stranger {
 public:
  explicit Stranger(const std::shared_ptr<MemoryNetwork>& network) {
    auto rails = MemoryFabric(network).open({});
    rail_ = std::move(rails->front());
  }
  void send(std::uint64_t to, std::span<const std::byte> bytes) {
    const Piece piece{bytes.data(), bytes.size(), nullptr};
    EXPECT_EQ(rail_->post_send(operation_, to, {&piece, 1}), 0);
  }

 private:
  std::unique_ptr<Rail> rail_;
  Operation operation_;
};

TEST(RailsLink, AnotherKeyIsRefused) {
  Pair pair;
  pair.options[1].key.bytes[0] = std::byte{1};
  pair.open();
  const auto before = refusals().count;
  const auto result = pair.connect(milliseconds(200));
  EXPECT_EQ(result[0].code(), StatusCode::timeout);
  EXPECT_THAT(result[0].message(), Mentions("rank 1"));
  EXPECT_GT(refusals().count, before);
  EXPECT_THAT(refusals().last, Mentions("key"));
}

TEST(RailsLink, DifferentSettingsAreNamed) {
  Pair pair;
  pair.options[1].tiles_per_peer = 5;
  pair.open();
  const auto result = pair.connect(seconds(20));
  EXPECT_TRUE(result[0].code() == StatusCode::mismatch || result[1].code() == StatusCode::mismatch);
  const Status& said = result[0].code() == StatusCode::mismatch ? result[0] : result[1];
  EXPECT_THAT(said.message(), Mentions("4", "5", "rank 0", "rank 1"));
}

TEST(RailsLink, MessagesWithoutTokenAreDroppedAndCounted) {
  Pair pair;
  pair.open_and_connect();
  Stranger stranger(pair.network);
  const auto before = refusals().count;
  Packet packet;
  packet.kind = PacketKind::close_notice;  // would end the link
  packet.token = 12345;
  std::array<std::byte, kPacketBytes> bytes{};
  encode(packet, PacketKey{12345, {}}, bytes);
  stranger.send(0, bytes);
  stranger.send(0, std::vector<std::byte>(kPacketBytes, std::byte{7}));
  stranger.send(0, std::vector<std::byte>(3));
  stranger.send(0, {});
  Record record;
  record.job_id = pair.options[0].job_id;
  record.from_rank = 1;
  record.size = 2;
  Key wrong;
  wrong.bytes[3] = std::byte{9};
  stranger.send(0, encode(record, wrong));
  EXPECT_TRUE(pair.until([&] { return refusals().count >= before + 5; }));
  EXPECT_TRUE(pair.links[0]->status().ok());
  pair.send(10, 100);
}

/// One end of a link, to which the test is the peer.
class ByHand {
 public:
  /// `write_from`: larger tiles are written; 0 = none is.
  explicit ByHand(std::size_t write_from, bool integrity = false) {
    options.size = 2;
    options.tile_bytes = 4096;
    options.tiles_per_peer = 4;
    options.write_from_bytes = write_from;
    options.integrity = integrity;
    RailTraits traits;
    traits.provider = "by hand";
    traits.max_message_bytes = 1024;  // tiles have pieces
    traits.max_write_bytes = 4096;
    traits.receives = 1024;
    peer = std::make_unique<HandPeer>(options, traits, 1);
    auto made = make_transport(options, peer->rails());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) end = std::move(*made);
  }
  Status connect(milliseconds limit = seconds(30)) {
    const int rank = 1;
    const std::string address = peer->address();
    auto made = end->connect({&rank, 1}, {&address, 1}, std::chrono::steady_clock::now() + limit);
    if (made.ok()) link = std::move(made->front());
    return made.status();
  }
  /// What this has refused since it was made, or the last call.
  std::uint64_t refused() {
    end->progress();
    return refusals().count - std::exchange(refused_before_, refusals().count);
  }
  [[nodiscard]] static Packet goodbye() {
    Packet packet;
    packet.kind = PacketKind::close_notice;
    return packet;
  }
  /// An announcement, or a piece, of a tile of 4000 bytes with a check sum.
  [[nodiscard]] static Packet tile(PacketKind kind, std::uint64_t position, std::uint32_t pieces, std::uint32_t piece = 0) {
    Packet packet;
    packet.kind = kind;
    packet.position = position;
    packet.tile.size_bytes = 4000;
    packet.pieces = pieces;
    packet.piece = piece;
    packet.has_checksum = true;
    packet.checksum = crc32c(std::vector<std::byte>(4000, std::byte{7}));
    return packet;
  }
  ~ByHand() {
    if (link != nullptr) peer->send(0, goodbye());  // nobody waits for this end's tiles
  }

  Options options;
  std::unique_ptr<HandPeer> peer;
  std::unique_ptr<Transport> end;
  std::unique_ptr<Link> link;

 private:
  std::uint64_t refused_before_ = refusals().count;
};

TEST(RailsLink, RecordedTokenWithoutTheKeyIsRefused) {
  for (const bool integrity : {false, true}) {
    ByHand hand(0, integrity);
    ASSERT_TRUE(hand.connect().ok());
    const auto good = hand.peer->encoded(ByHand::goodbye());
    EXPECT_EQ(hand.refused(), 0U);
    // The token and the link are read off the wire; the rest is new.
    const PacketKey key = std::exchange(hand.peer->key, PacketKey{hand.peer->key.token, {}});
    const auto forged = hand.peer->encoded(ByHand::goodbye());
    EXPECT_EQ(token_in(std::span(forged).first<kPacketBytes>()), key.token);
    EXPECT_NE(forged, good);
    hand.peer->deliver(0, forged);
    EXPECT_EQ(hand.refused(), 1U);
    if (integrity) continue;  // it may have been changed on the way: the link ends
    EXPECT_TRUE(hand.link->status().ok());
    hand.peer->deliver(0, good);
    hand.end->progress();
    EXPECT_FALSE(hand.link->status().ok()) << "with the key it counts";
  }
}

TEST(RailsLink, ChangedRecordedPacketIsRefused) {
  ByHand hand(0);
  ASSERT_TRUE(hand.connect().ok());
  const auto recorded = hand.peer->encoded(Packet());
  for (std::size_t bit = 0; bit < 8 * kPacketBytes; ++bit) {  // its position, kind, token: anything
    auto changed = recorded;
    changed[bit / 8] ^= std::byte{1} << bit % 8;
    ASSERT_TRUE(hand.peer->deliver(0, changed));
    EXPECT_EQ(hand.refused(), 1U) << "bit " << bit;
  }
  EXPECT_TRUE(hand.link->status().ok());
  EXPECT_EQ(hand.link->peek(), nullptr);
}

// The place where it would be checked is there only where tiles are written.
TEST(RailsLink, AnnouncementWithoutWritesIsRefused) {
  ByHand hand(0, true);
  ASSERT_TRUE(hand.connect().ok());
  for (std::uint32_t i = 0; i < 8; ++i) {
    hand.peer->send(0, ByHand::tile(PacketKind::announce, 0, 8));
    EXPECT_EQ(hand.refused(), 1U);
    const Extent extent = piece_extent(4000, 8, i);
    hand.peer->send(0, ByHand::tile(PacketKind::data, 0, 8, i), extent.bytes);
    EXPECT_EQ(hand.refused(), 0U);
  }
  const Arrival* arrival = hand.link->peek();
  ASSERT_NE(arrival, nullptr);
  EXPECT_EQ(arrival->data.size(), 4000U);
  hand.link->release();
}

TEST(RailsLink, TileIsEitherWrittenOrSent) {
  ByHand hand(512);
  ASSERT_TRUE(hand.connect().ok());
  Packet small = ByHand::tile(PacketKind::announce, 0, 1);
  small.tile.size_bytes = 512;
  hand.peer->send(0, small);
  EXPECT_EQ(hand.refused(), 1U) << "announced, though it is too small to be written";
  hand.peer->send(0, ByHand::tile(PacketKind::data, 0, 8), piece_extent(4000, 8, 0).bytes);
  EXPECT_EQ(hand.refused(), 1U) << "sent, though it is large enough to be written";
}

TEST(RailsLink, MarksWithoutAnOpenWriteAreRefused) {
  const auto last = [] { return refusals().last; };
  {
    ByHand hand(512);
    hand.peer->answers = false;
    EXPECT_EQ(hand.connect(milliseconds(0)).code(), StatusCode::timeout);
    hand.peer->write(0, {0, 0, 0});
    EXPECT_EQ(hand.refused(), 1U) << "the peer has not shown itself";
    EXPECT_THAT(last(), Mentions("link"));
  }
  {
    ByHand hand(0);
    ASSERT_TRUE(hand.connect().ok());
    hand.peer->write(0, {0, 0, 0});
    EXPECT_EQ(hand.refused(), 1U) << "nothing is ever written";
    EXPECT_THAT(last(), ::testing::Not(Mentions("link")));
  }
  ByHand hand(512);
  ASSERT_TRUE(hand.connect().ok());
  hand.peer->write(0, {1, 0, 0});
  EXPECT_EQ(hand.refused(), 1U) << "no such link";
  hand.peer->write(0, {0, 0, 1});
  EXPECT_EQ(hand.refused(), 1U) << "no tile has so many pieces";
  Packet small;
  small.tile.size_bytes = 200;
  small.pieces = 2;
  hand.peer->send(0, small, piece_extent(200, 2, 0).bytes);
  EXPECT_EQ(hand.refused(), 0U);
  hand.peer->write(0, {0, 0, 0});
  EXPECT_EQ(hand.refused(), 1U) << "that tile is sent";
}

// They are forgotten when it shows what the tile is: else it would be shown before all of it is there.
TEST(RailsLink, EarlyMarksCountExistingPiecesOnly) {
  ByHand hand(512);
  ASSERT_TRUE(hand.connect().ok());
  hand.peer->write(0, {0, 0, 0});
  EXPECT_EQ(hand.refused(), 0U) << "a write may come before its announcement";
  Packet small;
  small.tile.size_bytes = 200;
  small.pieces = 2;
  hand.peer->send(0, small, piece_extent(200, 2, 0).bytes);
  hand.end->progress();
  EXPECT_EQ(hand.link->peek(), nullptr) << "the second piece is not there";
  small.piece = 1;
  hand.peer->send(0, small, piece_extent(200, 2, 1).bytes);
  hand.end->progress();
  const Arrival* arrival = hand.link->peek();
  ASSERT_NE(arrival, nullptr);
  for (const std::byte byte : arrival->data) EXPECT_EQ(byte, std::byte{7});
  hand.link->release();
}

TEST(RailsLink, DeadRailIsAbandonedWhileOthersContinue) {
  for (const double silent : {0.0, 1.0}) {
    MemoryRailOptions rails;
    rails.rails = 2;
    Faults faults;
    faults.dying_rail = 0;
    faults.dying_rank = 0;
    faults.dies_after = 10;
    faults.silent = silent;
    Pair pair(rails, faults);
    pair.open_and_connect();
    ::testing::internal::CaptureStderr();
    pair.send(60, 4000);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, Mentions("rank 1", "rail 0")) << "silent: " << silent;
    EXPECT_TRUE(pair.links[0]->status().ok());
  }
}

// An operation that has failed may still arrive. It must not find what was written after it.
TEST(RailsLink, WritesWaitUntilTheLostRailHasNoSlots) {
  MemoryRailOptions rails;
  rails.rails = 2;
  Faults faults;
  faults.seed = 5;  // what is posted on that rail fails at once
  faults.dying_rail = 1;
  faults.dying_rank = 0;
  faults.dies_after = 0;
  faults.silent = 0;
  Pair pair(rails, faults);
  pair.open_and_connect();
  std::uint32_t taken = 0;
  const auto offer = [&](std::size_t bytes) {
    const std::vector<std::byte> data(bytes, static_cast<std::byte>(taken));
    const bool takes = pair.links[0]->try_send({0, taken, 0, static_cast<std::uint32_t>(bytes), 0}, data);
    taken += takes ? 1 : 0;
    return takes;
  };
  constexpr std::size_t kWritten = 4000;
  constexpr std::size_t kSent = 100;
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(offer(kWritten));
  for (int i = 0; i < 100; ++i) pair.ends[0]->progress();  // the peer does not look
  EXPECT_FALSE(offer(kWritten));
  EXPECT_TRUE(offer(kSent)) << "there is room";
  for (int i = 0; i < 100; ++i) pair.ends[0]->progress();
  EXPECT_FALSE(offer(kWritten));
  EXPECT_TRUE(pair.until([&] { return offer(kWritten); })) << "the peer has taken them";
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("rank 1", "rail 1"));
  std::uint32_t received = 0;
  EXPECT_TRUE(pair.until([&] {
    if (const Arrival* arrival = pair.links[1]->peek()) {
      EXPECT_EQ(arrival->header.sequence, received);
      for (const std::byte byte : arrival->data) EXPECT_EQ(byte, static_cast<std::byte>(received));
      pair.links[1]->release();
      ++received;
    }
    return received == taken;
  }));
}

TEST(RailsLink, LastFailedRailEndsTheLinkAndNamesThePeer) {
  Faults faults;
  faults.dying_rail = 0;
  faults.dying_rank = 0;
  faults.dies_after = 3;
  faults.silent = 0;
  Pair pair({}, faults);
  pair.open_and_connect();
  const std::vector<std::byte> data(100);
  EXPECT_TRUE(pair.until([&] {
    static_cast<void>(pair.links[0]->try_send({0, 0, 0, 100, 0}, data));
    if (pair.links[1]->peek() != nullptr) pair.links[1]->release();
    return !pair.links[0]->status().ok();
  }));
  EXPECT_EQ(pair.links[0]->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(pair.links[0]->status().message(), HasSubstr("rank 1"));
}

TEST(RailsLink, OptionsOutOfRangeAreRefused) {
  const auto complaint = [](auto change) {
    Pair pair;
    change(pair.options[0]);
    const auto made = make_ofi_transport(pair.options[0]);
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    return made.status().message();
  };
  EXPECT_THAT(complaint([](OfiOptions& o) { o.rank = 2; }), Mentions("rank 2", "2 ranks"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tile_bytes = 100; }), Mentions("100", "512"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tiles_per_peer = 65; }), Mentions("65", "64"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.stripe_bytes = 0; }), Mentions("0", "1024"));
}

TEST(RailsLink, TooSmallMessagesAreRefused) {
  Faults faults;
  faults.max_message_bytes = 200;
  Pair pair({}, faults);
  const auto made = make_ofi_transport(pair.options[0]);
  EXPECT_EQ(made.status().code(), StatusCode::unsupported);
  EXPECT_THAT(made.status().message(), Mentions("200", "SHOAL_TILE_BYTES"));
}

}  // namespace
}  // namespace shoal::rails
