// Bits that change on the way over rails, with check sums and without.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <vector>

#include "tests/mentions.h"
#include "tests/unit/rails_support.h"
#include "transports/common/checksum.h"

namespace shoal::rails {
namespace {

using shoal::testing::Mentions;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Faults;
using testing::MemoryRailOptions;
using testing::Pair;

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

TEST_P(RailsFlips, AreRepairedWithChecksums) {
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
TEST_P(RailsFlips, ArriveWithoutChecksums) {
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

TEST_P(RailsFlips, RepeatedInATileEndTheLinkAndNameTheRank) {
  Pair pair(rails(), faults(1));
  for (auto& options : pair.options) options.integrity = true;
  pair.open_and_connect();
  EXPECT_EQ(send_until(pair, [&](const Got&) { return !pair.links[1]->status().ok(); }).damaged, 0);
  EXPECT_EQ(pair.links[1]->status().code(), StatusCode::peer_failed);
  EXPECT_THAT(pair.links[1]->status().message(),
              ::testing::AllOf(Mentions("rank 0", "16"), ::testing::ContainsRegex("tile [0-9]")));
}

// Who leaves stays until all that it sent has come as it was.
TEST_P(RailsFlips, AreRepairedIfTheSenderLeavesAtOnce) {
  std::uint64_t flips = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Pair pair(rails(), faults(0.08, seed));  // so that none of a few pieces is changed 16 times in a row
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
    EXPECT_THAT(pair.links[1]->status().message(), Mentions("rank 0", "closed"));
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

TEST(RailsRepeats, UnrepairableMessageEndsTheLinkAndNamesTheRank) {
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
  EXPECT_THAT(pair.links[1]->status().message(), Mentions("rank 0", "message"));
}

}  // namespace
}  // namespace shoal::rails
