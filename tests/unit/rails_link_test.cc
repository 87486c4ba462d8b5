// Links over rails one property at a time: strangers, settings, one rail that dies, what no completion comes for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <vector>

#include "src/trust/refusals.h"
#include "tests/unit/rails_support.h"
#include "transports/rails/wire.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Faults;
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
  encode(packet, bytes);
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
