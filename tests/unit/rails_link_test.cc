// Links over rails one property at a time: strangers, settings, one rail that dies, what no completion comes for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <vector>

#include "src/trust/refusals.h"
#include "tests/ofi/hand_peer.h"
#include "tests/unit/rails_support.h"
#include "transports/checksum.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

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

TEST(RailsLink, AnotherKeyOpensNothing) {
  Pair pair;
  pair.options[1].key.bytes[0] = std::byte{1};
  pair.open();
  const auto before = refusals().count;
  const auto result = pair.connect(milliseconds(200));
  EXPECT_EQ(result[0].code(), StatusCode::timeout);
  EXPECT_THAT(result[0].message(), HasSubstr("rank 1 did not connect"));
  EXPECT_THAT(result[0].message(), HasSubstr("strangers"));
  EXPECT_GT(refusals().count, before);
}

TEST(RailsLink, OtherSettingsAreAnErrorThatSaysWhich) {
  Pair pair;
  pair.options[1].tiles_per_peer = 5;
  pair.open();
  const auto result = pair.connect(seconds(20));
  EXPECT_TRUE(result[0].code() == StatusCode::mismatch || result[1].code() == StatusCode::mismatch);
  const Status& said = result[0].code() == StatusCode::mismatch ? result[0] : result[1];
  EXPECT_THAT(said.message(), HasSubstr("tiles per peer"));
}

TEST(RailsLink, MessagesWithoutTheTokenAndJunkAreDroppedAndCounted) {
  Pair pair;
  pair.open_and_connect();
  Stranger stranger(pair.network);
  const auto before = refusals().count;
  Packet packet;
  packet.kind = PacketKind::goodbye;  // would end the link
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
    packet.kind = PacketKind::goodbye;
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
    packet.summed = true;
    packet.sum = crc32c(std::vector<std::byte>(4000, std::byte{7}));
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

TEST(RailsLink, APacketWithARecordedTokenAndWithoutTheKeyIsRefused) {
  for (const bool integrity : {false, true}) {
    ByHand hand(0, integrity);
    ASSERT_TRUE(hand.connect().ok());
    const auto good = hand.peer->sealed(ByHand::goodbye());
    EXPECT_EQ(hand.refused(), 0U);
    // The token and the link are read off the wire; the rest is new.
    const PacketKey key = std::exchange(hand.peer->key, PacketKey{hand.peer->key.token, {}});
    const auto forged = hand.peer->sealed(ByHand::goodbye());
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

TEST(RailsLink, ARecordedPacketThatIsChangedIsRefused) {
  ByHand hand(0);
  ASSERT_TRUE(hand.connect().ok());
  const auto recorded = hand.peer->sealed(Packet());
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
TEST(RailsLink, AnAnnouncementWhereNothingIsWrittenIsRefused) {
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

TEST(RailsLink, ATileIsEitherWrittenOrSent) {
  ByHand hand(512);
  ASSERT_TRUE(hand.connect().ok());
  Packet small = ByHand::tile(PacketKind::announce, 0, 1);
  small.tile.size_bytes = 512;
  hand.peer->send(0, small);
  EXPECT_EQ(hand.refused(), 1U) << "announced, though it is too small to be written";
  hand.peer->send(0, ByHand::tile(PacketKind::data, 0, 8), piece_extent(4000, 8, 0).bytes);
  EXPECT_EQ(hand.refused(), 1U) << "sent, though it is large enough to be written";
}

TEST(RailsLink, MarksAreRefusedWhereNoWriteIsOpen) {
  const auto last = [] { return refusals().last; };
  {
    ByHand hand(512);
    hand.peer->answers = false;
    EXPECT_EQ(hand.connect(milliseconds(0)).code(), StatusCode::timeout);
    hand.peer->write(0, {0, 0, 0});
    EXPECT_EQ(hand.refused(), 1U) << "the peer has not shown itself";
    EXPECT_THAT(last(), HasSubstr("a link that does not exist"));
  }
  {
    ByHand hand(0);
    ASSERT_TRUE(hand.connect().ok());
    hand.peer->write(0, {0, 0, 0});
    EXPECT_EQ(hand.refused(), 1U) << "nothing is ever written";
    EXPECT_THAT(last(), HasSubstr("where nothing is written"));
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
TEST(RailsLink, MarksThatCameBeforeTheTileCountNoPieceThatItDoesNotHave) {
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

/// A sender whose tiles lie in memory that lasts, and who gives up. The rails read them where they lie, and late.
class GivingUp {
 public:
  /// `beside`: the peer is another process of this host, where the rail redirects, or lets it read what was sent by itself.
  explicit GivingUp(std::size_t rails, bool written = false, bool beside = false, bool redirects = false) {
    memory_.resize(kTiles * kBytes);
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(1 + i / kBytes);
    options_.size = 2;
    options_.tile_bytes = 4096;
    options_.tiles_per_peer = 4;
    options_.write_from_bytes = written ? 512 : 0;
    options_.lasting_memory = memory_;
    options_.lend_from_bytes = 64;
    RailTraits traits;
    traits.provider = traits.device = "by hand";
    traits.max_message_bytes = traits.max_write_bytes = 1 << 20;
    traits.receives = 1024;
    traits.local_registration = !redirects;
    traits.neighbours_read = beside && !redirects;
    peer = std::make_unique<HandPeer>(options_, traits, rails);
    peer->beside = beside;
    peer->redirects = redirects;
    auto made = make_transport(options_, peer->rails());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (!made.ok()) return;
    end = std::move(*made);
    const int rank = 1;
    const std::string address = peer->address();
    auto links = end->connect({&rank, 1}, {&address, 1}, std::chrono::steady_clock::now() + seconds(30));
    EXPECT_TRUE(links.ok()) << links.status().to_string();
    if (links.ok()) link = std::move(links->front());
    peer->remembers = true;
  }
  void lend() {
    for (std::uint32_t i = 0; i < kTiles; ++i)
      ASSERT_TRUE(link->try_lend({0, i, 0, kBytes, 0}, std::span(memory_).subspan(i * kBytes, kBytes)));
  }
  /// How long that took. The memory is the user's again.
  milliseconds give_up() {
    const auto start = std::chrono::steady_clock::now();
    link->keep_copies();
    const auto passed = std::chrono::steady_clock::now() - start;
    std::ranges::fill(memory_, std::byte{0xee});
    return std::chrono::duration_cast<milliseconds>(passed);
  }
  void let_go() {
    peer->refuses = 0;
    peer->holds = false;
    for (const auto& wire : peer->wires) wire->holds = false;
    peer->complete();
    for (int i = 0; i < 100; ++i) end->progress();
    peer->complete();
  }
  /// Each tile at least once, and nothing else.
  void expect_all_left_as_they_were() const {
    std::vector<int> times(kTiles);
    for (const auto& payload : peer->payloads) {
      ASSERT_EQ(payload.size(), kBytes);
      const auto first = static_cast<std::size_t>(payload.front());
      ASSERT_TRUE(first >= 1 && first <= kTiles && payload == std::vector<std::byte>(kBytes, payload.front()))
          << "it begins with " << first;
      ++times[first - 1];
    }
    EXPECT_THAT(times, ::testing::Each(::testing::Ge(1)));
  }
  static constexpr std::uint32_t kTiles = 3;
  static constexpr std::uint32_t kBytes = 1000;

 private:
  std::vector<std::byte> memory_;
  Options options_;

 public:
  std::unique_ptr<HandPeer> peer;
  std::unique_ptr<Transport> end;
  std::unique_ptr<Link> link;
};

class RailsGivingUp : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RailsGivingUp, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "written" : "sent"); });

TEST_P(RailsGivingUp, WhatWaitsLeavesAsItWas) {
  GivingUp sender(1, GetParam());
  sender.peer->refuses = kAgain;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
  EXPECT_EQ(sender.link->sent_tiles(), GivingUp::kTiles);
}

TEST_P(RailsGivingUp, WhatIsUnderWayGetsAMoment) {
  GivingUp sender(1, GetParam());
  sender.peer->holds = true;
  sender.lend();
  sender.peer->wires[0]->reads = 3;
  EXPECT_LT(sender.give_up(), milliseconds(150));
  EXPECT_TRUE(sender.end->progress()) << "memory became free meanwhile";
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

// It would be sent as it lies there when the peer looks at last.
TEST_P(RailsGivingUp, WhatIsNeverTakenEndsTheLinkAndIsReadNoMore) {
  GivingUp sender(1, GetParam());
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), seconds(1));
  sender.let_go();
  EXPECT_TRUE(sender.peer->payloads.empty());
  const auto end = std::chrono::steady_clock::now() + seconds(10);
  while (sender.link->status().ok() && std::chrono::steady_clock::now() < end) sender.end->progress();
  EXPECT_EQ(sender.link->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(sender.link->status().message(), HasSubstr("rank 1 did not take what was lent to it"));
  sender.link.reset();
  const auto start = std::chrono::steady_clock::now();
  sender.end.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(100)) << "nothing is waited for";
}

TEST_P(RailsGivingUp, OfSeveralRailsAnotherTakesTheCopy) {
  GivingUp sender(2, GetParam());
  sender.peer->wires[1]->holds = true;
  sender.lend();
  ASSERT_FALSE(sender.peer->wires[1]->held.empty());
  ::testing::internal::CaptureStderr();
  EXPECT_LT(sender.give_up(), seconds(1));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is no longer reached by rail 1"));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.peer->wires[0]->open && !sender.peer->wires[1]->open);
  EXPECT_TRUE(sender.link->status().ok());
}

// What it sent may never come: by another rail it would leave once more from where it lies.
TEST_P(RailsGivingUp, WhatHasLeftButNotComeIsKept) {
  GivingUp sender(2, GetParam());
  sender.lend();
  for (int i = 0; i < 10; ++i) sender.end->progress();
  EXPECT_EQ(sender.link->sent_tiles(), 0U) << "the peer has not said that it has come";
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  sender.peer->payloads.clear();
  ::testing::internal::CaptureStderr();
  Packet lost;
  lost.kind = PacketKind::rail_lost;
  lost.position = 0;
  sender.peer->send(1, lost);
  sender.let_go();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("no longer reached by rail 0"));
  EXPECT_FALSE(sender.peer->payloads.empty());
  for (const auto& payload : sender.peer->payloads) EXPECT_NE(payload.front(), std::byte{0xee});
}

// Closing the rail would not keep it from that.
TEST_P(RailsGivingUp, NothingIsLentToAPeerThatReadsByItself) {
  GivingUp sender(1, GetParam(), true);
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

TEST(RailsLink, ARailThatCanIsToldOfTheCopyByWhoGivesUp) {
  GivingUp sender(1, false, true, true);
  sender.peer->holds = true;
  sender.lend();
  EXPECT_LT(sender.give_up(), milliseconds(100));
  sender.let_go();
  sender.expect_all_left_as_they_were();
  EXPECT_TRUE(sender.link->status().ok());
}

TEST(RailsLink, ADeadRailIsLeftAndTheOthersGoOn) {
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
    EXPECT_THAT(said, HasSubstr("rank 1 is no longer reached by rail 0")) << "silent: " << silent;
    EXPECT_THAT(said, HasSubstr("going on without it"));
    EXPECT_TRUE(pair.links[0]->status().ok());
  }
}

// An operation that has failed may still arrive. It must not find what was written after it.
TEST(RailsLink, NothingNewIsWrittenUntilThePeerHasTakenItsSlotsFromTheLostRail) {
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
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("rank 1 is no longer reached by rail 1"));
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

/// Rank 0 of two, over two rails, sends tiles and leaves at once; how long that takes.
class Leaving {
 public:
  explicit Leaving(bool written, const Faults& faults = {}) : pair_(rails(written), faults) {
    pair_.open_and_connect();
    const std::vector<std::byte> data(kBytes, std::byte{9});
    while (pair_.links[0]->try_send({0, sent_, 0, kBytes, 0}, data)) ++sent_;
    EXPECT_GE(sent_, 4U);
  }
  /// `looks`: rank 1 makes progress meanwhile.
  milliseconds leave(bool looks = true) {
    const auto start = std::chrono::steady_clock::now();
    const auto left = std::async(std::launch::async, [&] {
      pair_.links[0].reset();
      pair_.ends[0].reset();
      return std::chrono::steady_clock::now();
    });
    while (left.wait_for(milliseconds(0)) != std::future_status::ready) {
      if (looks) receive();
    }
    const auto end = std::chrono::steady_clock::now();
    while (pair_.links[1]->status().ok() && std::chrono::steady_clock::now() - end < seconds(10)) receive();
    return std::chrono::duration_cast<milliseconds>(end - start);
  }
  [[nodiscard]] Link& other() { return *pair_.links[1]; }
  [[nodiscard]] std::uint32_t sent() const { return sent_; }
  [[nodiscard]] std::uint32_t received() const { return received_; }
  void receive() {
    pair_.ends[1]->progress();
    while (const Arrival* arrival = pair_.links[1]->peek()) {
      EXPECT_EQ(arrival->header.sequence, received_);
      EXPECT_EQ(std::ranges::count(arrival->data, std::byte{9}), kBytes);
      pair_.links[1]->release();
      ++received_;
    }
  }

 private:
  static MemoryRailOptions rails(bool written) {
    MemoryRailOptions rails;
    rails.rails = 2;
    rails.writes = written;
    return rails;
  }
  static constexpr std::uint32_t kBytes = 4000;
  Pair pair_;
  std::uint32_t sent_ = 0;
  std::uint32_t received_ = 0;
};

class RailsLeaving : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, RailsLeaving, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "written" : "sent"); });

// All is sent, says the card.
TEST_P(RailsLeaving, WhatASilentRailHasSwallowedIsSaidOnceMore) {
  Faults faults;
  faults.dying_rail = 1;
  faults.swallows = true;
  Leaving rank(GetParam(), faults);
  EXPECT_LT(rank.leave(), seconds(4));
  EXPECT_EQ(rank.received(), rank.sent());
  EXPECT_THAT(rank.other().status().message(), HasSubstr("rank 0 closed the connection"));
}

TEST_P(RailsLeaving, IsOverAtOnceWhereThePeerLooks) {
  Leaving rank(GetParam());
  EXPECT_LT(rank.leave(), milliseconds(300));
  EXPECT_EQ(rank.received(), rank.sent());
}

TEST_P(RailsLeaving, IsOverAtOnceWhereBothLeave) {
  MemoryRailOptions rails;
  rails.rails = 2;
  rails.writes = GetParam();
  std::optional<Pair> pair(rails);
  pair->open_and_connect();
  pair->send(21, 4000);
  const auto start = std::chrono::steady_clock::now();
  pair.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(300));
}

TEST_P(RailsLeaving, IsOverAtOnceWhereThePeerHasLeft) {
  MemoryRailOptions rails;
  rails.rails = 2;
  rails.writes = GetParam();
  Pair pair(rails);
  pair.open_and_connect();
  pair.ends[1].reset();
  const std::vector<std::byte> data(4000);
  static_cast<void>(pair.links[0]->try_send({0, 0, 0, 4000, 0}, data));
  EXPECT_TRUE(pair.until([&] { return !pair.links[0]->status().ok(); }));
  const auto start = std::chrono::steady_clock::now();
  pair.ends[0].reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(100));
}

TEST_P(RailsLeaving, WaitsNotForLongForAPeerThatDoesNotLook) {
  Leaving rank(GetParam());
  EXPECT_LT(rank.leave(false), milliseconds(1500));
  EXPECT_EQ(rank.received(), rank.sent());
}

TEST(RailsLink, TheLastRailThatFailsEndsTheLinkAndNamesThePeer) {
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

struct Wire {
  const char* name;
  bool writes;
  std::size_t max_message_bytes = 0;  // 0: as large as a tile
  std::size_t segment_bytes = 0;
  double twice = 0;
  int rails = 1;
};

class RailsFlips : public ::testing::TestWithParam<Wire> {
 protected:
  static Faults faults(double flip, std::uint64_t seed = 1) {
    Faults faults;
    faults.seed = seed;
    faults.flip = flip;
    faults.max_message_bytes = GetParam().max_message_bytes;
    faults.segment_bytes = GetParam().segment_bytes;
    faults.twice = GetParam().twice;
    return faults;
  }
  static MemoryRailOptions rails() {
    MemoryRailOptions rails;
    rails.rails = GetParam().rails;
    rails.writes = GetParam().writes;
    rails.local_registration = true;
    return rails;
  }
  /// Tiles that rank 1 has got.
  struct Got {
    std::uint32_t tiles = 0;
    int damaged = 0;
  };
  /// Sends tiles from rank 0 to rank 1 until there are enough, or for a while.
  template <typename Enough>
  static Got send_until(Pair& pair, Enough enough, milliseconds limit = seconds(30)) {
    std::uint32_t sent = 0;
    Got got;
    static_cast<void>(pair.until(
        [&] {
          const std::vector<std::byte> data(kTile, static_cast<std::byte>(sent));
          sent += pair.links[0]->try_send({0, sent, 0, kTile, 0}, data) ? 1 : 0;
          if (const Arrival* arrival = pair.links[1]->peek()) {
            const std::vector<std::byte> right(kTile, static_cast<std::byte>(got.tiles));
            got.damaged += std::ranges::equal(arrival->data, right) ? 0 : 1;
            pair.links[1]->release();
            ++got.tiles;
          }
          return enough(got);
        },
        limit));
    return got;
  }
  static constexpr std::uint32_t kTile = 4000;
};

TEST_P(RailsFlips, AreRepairedWhereThereAreCheckSums) {
  for (const bool from_the_start : {true, false}) {
    Pair pair(rails(), faults(0.05));
    for (auto& options : pair.options) options.integrity = from_the_start;
    pair.open_and_connect();
    for (auto& end : pair.ends) end->use_check_sums();
    const Got got = send_until(pair, [](const Got& so_far) { return so_far.tiles == 300; });
    EXPECT_EQ(got.tiles, 300U);
    EXPECT_EQ(got.damaged, 0);
    EXPECT_GT(pair.state->flips(), 15U);
    EXPECT_TRUE(pair.links[0]->status().ok() && pair.links[1]->status().ok());
    EXPECT_EQ(pair.network->complaint(), "");
  }
}

// Or what bears the front that was changed never comes.
TEST_P(RailsFlips, ArriveWhereThereAreNone) {
  int damaged = 0;
  for (std::uint64_t seed = 1; seed <= 20 && damaged == 0; ++seed) {
    Pair pair(rails(), faults(0.3, seed));
    pair.open_and_connect();
    damaged = send_until(
                  pair, [](const Got& so_far) { return so_far.damaged > 0; }, milliseconds(100))
                  .damaged;
  }
  EXPECT_GT(damaged, 0);
}

TEST_P(RailsFlips, InATileEachTimeEndTheLinkAndNameTheRank) {
  Pair pair(rails(), faults(1));
  for (auto& options : pair.options) options.integrity = true;
  pair.open_and_connect();
  EXPECT_EQ(send_until(pair, [&](const Got&) { return !pair.links[1]->status().ok(); }).damaged, 0);
  EXPECT_EQ(pair.links[1]->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(pair.links[1]->status().message(), HasSubstr("rank 0 sent tile "));
  EXPECT_THAT(pair.links[1]->status().message(), HasSubstr("with a wrong check sum, 16 times in a row"));
}

// Who leaves stays until all that it sent has come as it was.
TEST_P(RailsFlips, AreRepairedAlsoWhenTheSenderLeavesAtOnce) {
  std::uint64_t flips = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Pair pair(rails(), faults(0.2, seed));
    for (auto& options : pair.options) options.integrity = true;
    pair.open_and_connect();
    std::uint32_t sent = 0;
    while (pair.links[0]->try_send({0, sent, 0, kTile, 0}, std::vector<std::byte>(kTile, static_cast<std::byte>(sent)))) ++sent;
    EXPECT_GE(sent, 4U);
    const auto left = std::async(std::launch::async, [&] {
      pair.links[0].reset();
      pair.ends[0].reset();
    });
    const auto end = std::chrono::steady_clock::now() + seconds(30);
    while (left.wait_for(milliseconds(0)) != std::future_status::ready || pair.links[1]->status().ok()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      pair.ends[1]->progress();
    }
    EXPECT_THAT(pair.links[1]->status().message(), HasSubstr("rank 0 closed the connection"));
    for (std::uint32_t received = 0; received < sent; ++received) {
      const Arrival* arrival = pair.links[1]->peek();
      ASSERT_NE(arrival, nullptr) << received << " of " << sent << ", seed " << seed;
      for (const std::byte byte : arrival->data) ASSERT_EQ(byte, static_cast<std::byte>(received));
      pair.links[1]->release();
    }
    flips += pair.state->flips();
  }
  EXPECT_GT(flips, 5U);
}

INSTANTIATE_TEST_SUITE_P(Wires, RailsFlips,
                         ::testing::Values(Wire{"sent", false}, Wire{"sent_in_pieces", false, 1500}, Wire{"written", true},
                                           Wire{"written_twice", true, 0, 1000, 0.3},
                                           Wire{"sent_by_two_rails", false, 0, 0, 0, 2},
                                           Wire{"written_by_two_rails", true, 0, 0, 0, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(RailsLink, AMessageThatCannotBePutRightEndsTheLinkAndNamesTheRank) {
  Faults faults;
  faults.flip = 1;
  faults.flipped_bits = 3;
  Pair pair({}, faults);
  for (auto& options : pair.options) options.integrity = true;
  pair.open_and_connect();
  ASSERT_TRUE(pair.links[0]->try_send({}, {}));  // no payload: it is the front that is changed
  EXPECT_TRUE(pair.until([&] { return !pair.links[1]->status().ok(); }));
  EXPECT_EQ(pair.links[1]->peek(), nullptr);
  EXPECT_EQ(pair.links[1]->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(pair.links[1]->status().message(), HasSubstr("rank 0 sent a message that was changed on the way"));
}

TEST(RailsLink, OptionsOutOfRangeAreRefused) {
  const auto complaint = [](auto change) {
    Pair pair;
    change(pair.options[0]);
    const auto made = make_ofi_transport(pair.options[0]);
    EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
    return made.status().message();
  };
  EXPECT_THAT(complaint([](OfiOptions& o) { o.rank = 2; }), HasSubstr("rank 2 of 2"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tile_bytes = 100; }), HasSubstr("tiles of 100 bytes"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.tiles_per_peer = 65; }), HasSubstr("65 tiles per peer"));
  EXPECT_THAT(complaint([](OfiOptions& o) { o.stripe_bytes = 0; }), HasSubstr("stripes of 0 bytes"));
}

TEST(RailsLink, MessagesThatAreTooSmallForTheTilesAreRefused) {
  Faults faults;
  faults.max_message_bytes = 200;
  Pair pair({}, faults);
  const auto made = make_ofi_transport(pair.options[0]);
  EXPECT_EQ(made.status().code(), StatusCode::unsupported);
  EXPECT_THAT(made.status().message(), HasSubstr("messages of 200 bytes"));
}

}  // namespace
}  // namespace shoal::rails
