// The rules of the overlay between hosts, one by one, on a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "src/progress/overlay/host_control.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Time = HostControl::Time;

const Time kStart = Time() + 1h;
constexpr GroupName kGroup{7, 1};
constexpr GroupName kOther{8, 1};
constexpr std::uint32_t kAbort = 1;
constexpr std::uint32_t kNews = 9;

std::vector<int> hosts_of(int hosts, int ranks_per_host) {
  std::vector<int> host_of_rank;
  for (int rank = 0; rank < hosts * ranks_per_host; ++rank) host_of_rank.push_back(rank / ranks_per_host);
  return host_of_rank;
}

std::vector<int> ranks_of(const RankRuns& set) {
  std::vector<int> ranks;
  set.each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

RankFacts facts(RankFacts::Kind kind, std::vector<int> ranks, const GroupName& group = {}) {
  return {kind, group, {}, RankRuns::of(ranks)};
}

TEST(KeeperRole, LowestRankClaimsFirst) {
  KeeperRole low({4, 5, 6}, 4, kStart);
  KeeperRole next({4, 5, 6}, 5, kStart);
  EXPECT_EQ(low.look({}, kStart), 1U);
  EXPECT_EQ(next.look({}, kStart), std::nullopt);
  EXPECT_EQ(next.keeper(), 4) << "a connection is redirected to the rank that is to be the keeper";
  EXPECT_EQ(low.look({1, 4, 0}, kStart), std::nullopt);
  EXPECT_TRUE(low.is_keeper());
}

TEST(KeeperRole, SuccessorClaimsAtOnceWhenKeeperEnds) {
  KeeperRole second({4, 5, 6}, 5, kStart);
  KeeperRole third({4, 5, 6}, 6, kStart);
  for (KeeperRole* role : {&second, &third}) {
    EXPECT_EQ(role->look({1, 4, 3}, kStart), std::nullopt);
    role->on_end(4, kStart + 1ms);
  }
  EXPECT_EQ(second.look({1, 4, 3}, kStart + 1ms), 2U);
  EXPECT_EQ(third.look({1, 4, 3}, kStart + 1ms), std::nullopt);
  third.on_end(5, kStart + 2ms);  // the keeper and its successor have ended
  EXPECT_EQ(third.look({1, 4, 3}, kStart + 2ms), 2U);
}

TEST(KeeperRole, StoppedBeatIsNoticedAfterHalfASecond) {
  KeeperRole second({4, 5, 6}, 5, kStart);
  KeeperRole third({4, 5, 6}, 6, kStart);
  for (KeeperRole* role : {&second, &third}) EXPECT_EQ(role->look({1, 4, 3}, kStart), std::nullopt);
  EXPECT_EQ(second.look({1, 4, 4}, kStart + 499ms), std::nullopt);
  EXPECT_EQ(second.next_look(), kStart + 999ms);
  EXPECT_EQ(second.look({1, 4, 4}, kStart + 998ms), std::nullopt);
  EXPECT_EQ(second.look({1, 4, 4}, kStart + 999ms), 2U);
  EXPECT_EQ(third.look({1, 4, 3}, kStart + 999ms), std::nullopt) << "its turn is when the second is stopped, too";
  EXPECT_EQ(third.look({1, 4, 3}, kStart + 1s), 2U);
}

TEST(KeeperRole, FirstRankFollowsTheLast) {
  KeeperRole first({4, 5, 6}, 4, kStart);
  EXPECT_EQ(first.look({3, 6, 0}, kStart), std::nullopt);
  first.on_end(6, kStart);
  EXPECT_EQ(first.look({3, 6, 0}, kStart), 4U);
}

TEST(KeeperRole, FormerKeeperDoesNotClaimBack) {
  KeeperRole first({4, 5}, 4, kStart);
  EXPECT_EQ(first.look({1, 4, 0}, kStart), std::nullopt);
  EXPECT_EQ(first.look({2, 5, 0}, kStart + 5s), std::nullopt) << "it was stopped for 5 s";
  EXPECT_FALSE(first.is_keeper());
  EXPECT_EQ(first.look({2, 5, 1}, kStart + 5400ms), std::nullopt);
}

TEST(KnownFacts, HighestNumberTellsDuplicates) {
  const HostTable table(hosts_of(4, 2));
  KnownFacts known(table);
  EXPECT_TRUE(known.add(Notice{1, 10, kGroup, kNews, {}}, false));
  EXPECT_FALSE(known.add(Notice{1, 10, kGroup, kNews, {}}, false));
  EXPECT_FALSE(known.add(Notice{1, 9, kGroup, kNews, {}}, false));
  EXPECT_TRUE(known.add(Notice{1, 12, kGroup, kNews, {}}, false)) << "numbers may leave some out";
  EXPECT_TRUE(known.add(Notice{2, 1, kGroup, kNews, {}}, false));
}

TEST(KnownFacts, FirstAbortOfCommunicatorCounts) {
  const HostTable table(hosts_of(4, 2));
  KnownFacts known(table);
  EXPECT_TRUE(known.add(Notice{1, 1, kGroup, kAbort, {}}, true));
  EXPECT_FALSE(known.add(Notice{2, 1, kGroup, kAbort, {}}, true));
  EXPECT_TRUE(known.add(Notice{2, 2, kOther, kAbort, {}}, true));
  EXPECT_EQ(known.all().size(), 2U);
}

TEST(KnownFacts, RankHasOneEnd) {
  const HostTable table(hosts_of(4, 2));
  KnownFacts known(table);
  EXPECT_THAT(ranks_of(known.add(facts(RankFacts::Kind::goodbye, {2, 3}))), ElementsAre(2, 3));
  EXPECT_THAT(ranks_of(known.add(facts(RankFacts::Kind::death, {1, 2, 3, 4}))), ElementsAre(1, 4));
  EXPECT_THAT(ranks_of(known.add(facts(RankFacts::Kind::goodbye, {1}))), IsEmpty());
  EXPECT_TRUE(known.ended().contains(1)) << "both of its ranks have left";
  EXPECT_FALSE(known.ended().contains(0));
  EXPECT_THAT(known.present_ranks(0), ElementsAre(0));
}

TEST(KnownFacts, FarewellsOfEqualHistoriesAreJoined) {
  const HostTable table(hosts_of(4, 2));
  KnownFacts known(table);
  known.add(facts(RankFacts::Kind::farewell, {0, 1}, kGroup));
  EXPECT_THAT(ranks_of(known.add(facts(RankFacts::Kind::farewell, {1, 2}, kGroup))), ElementsAre(2));
  EXPECT_EQ(known.all().size(), 1U);
  RankFacts other = facts(RankFacts::Kind::farewell, {2, 3}, kGroup);
  other.payload.resize(1);
  EXPECT_THAT(ranks_of(known.add(other)), ElementsAre(3)) << "a rank leaves a communicator once";
  EXPECT_EQ(known.all().size(), 2U);
}

TEST(KnownFacts, MemoryIsBounded) {
  const HostTable table(hosts_of(4, 2000));
  KnownFacts known(table);
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    EXPECT_TRUE(known.add(Notice{static_cast<int>(i), i, {i, 1}, kAbort, std::vector<std::byte>(100)}, true));
    known.add(facts(RankFacts::Kind::farewell, {0}, {i, 1}));
  }
  EXPECT_EQ(known.all().size(), KnownFacts::kMostNotices + KnownFacts::kMostGroups);
  for (std::uint64_t i = 1; i <= 100; ++i)
    EXPECT_TRUE(known.add(Notice{1, 6000 + i, {6000 + i, 1}, kAbort, std::vector<std::byte>(kMostNoticePayload)}, true));
  EXPECT_EQ(known.all().size(), KnownFacts::kMostNoticeBytes / kMostNoticePayload + KnownFacts::kMostGroups);
}

/// Rank 0, keeper of host 0 of `hosts` with `ranks_per_host` each, connected with the lowest rank of each neighbour.
struct Keeper {
  explicit Keeper(int hosts, int ranks_per_host = 2) : table(hosts_of(hosts, ranks_per_host)), control(table, 0, {}, kStart) {
    control.look({}, kStart);
    EXPECT_EQ(control.actions().claim, 1U);
    control.actions() = {};
    control.look({1, 0, 0}, kStart);
    EXPECT_EQ(control.actions().beat, ranks_per_host > 1);  // else no rank would look at it
    for (const Endpoint& peer : std::exchange(control.actions().connect, {})) control.on_connected(peer);
    control.actions() = {};
  }
  OverlayActions take() { return std::exchange(control.actions(), {}); }
  void receive(int from, const OverlayMessage& message, Time now) {
    EXPECT_TRUE(control.on_message(from, to_bytes(message), now));
  }
  /// What is sent to `host`.
  std::vector<OverlayMessage> parsed(const OverlayActions& actions, int host) const {
    std::vector<OverlayMessage> messages;
    for (const auto& [to, bytes] : actions.send) {
      if (to == host) messages.push_back(*parse_overlay(*bytes, table.ranks()));
    }
    return messages;
  }

  const HostTable table;
  HostControl control;
};

std::vector<int> receivers(const OverlayActions& actions) {
  std::vector<int> hosts;
  for (const auto& each : actions.send) hosts.push_back(each.host);
  return hosts;
}

TEST(HostControl, PassesNoticeToAllButItsSource) {
  Keeper keeper(10);
  const Notice notice{6, 1, kGroup, kAbort, {}};
  keeper.receive(2, notice, kStart);
  const auto actions = keeper.take();
  EXPECT_THAT(receivers(actions), ElementsAre(1, 4, 6, 8, 9));
  EXPECT_EQ(actions.publish.size(), 1U);
  keeper.receive(4, notice, kStart);
  EXPECT_TRUE(keeper.take().empty());
}

TEST(HostControl, PassesOnWhatTheBoardSays) {
  Keeper keeper(4);
  EXPECT_TRUE(keeper.control.on_board(Notice{1, 1, kGroup, kAbort, {}}, kStart));
  const auto actions = keeper.take();
  EXPECT_THAT(receivers(actions), ElementsAre(1, 2, 3));
  EXPECT_THAT(actions.publish, IsEmpty());
  EXPECT_FALSE(keeper.control.on_board(Notice{1, 1, kGroup, kAbort, {}}, kStart));
}

TEST(HostControl, CollectsFarewellsAndGoodbyes) {
  Keeper keeper(4);
  keeper.control.on_board(facts(RankFacts::Kind::farewell, {1}, kGroup), kStart);
  keeper.receive(1, facts(RankFacts::Kind::farewell, {2, 3}, kGroup), kStart + 1ms);
  keeper.receive(2, facts(RankFacts::Kind::goodbye, {4}), kStart + 2ms);
  EXPECT_TRUE(keeper.take().empty());
  EXPECT_EQ(keeper.control.next_time(), kStart + HostControl::kCollect);
  keeper.control.look({1, 0, 0}, kStart + HostControl::kCollect);
  const auto actions = keeper.take();
  const auto sent = keeper.parsed(actions, 3);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_THAT(ranks_of(std::get<RankFacts>(sent[0]).ranks), ElementsAre(1, 2, 3));
  EXPECT_THAT(ranks_of(std::get<RankFacts>(sent[1]).ranks), ElementsAre(4));
  ASSERT_EQ(actions.publish.size(), 2U);
  EXPECT_THAT(ranks_of(std::get<RankFacts>(actions.publish[0]).ranks), ElementsAre(2, 3)) << "the board has the other";
}

TEST(HostControl, DeathLeavesAtOnceAndRingCloses) {
  Keeper keeper(10);
  keeper.receive(4, facts(RankFacts::Kind::death, {2, 3}), kStart);  // host 1
  const auto actions = keeper.take();
  EXPECT_THAT(receivers(actions), ElementsAre(1, 2, 6, 8, 9)) << "host 1 as well: it may live, and is told so";
  EXPECT_EQ(actions.publish.size(), 1U);
  EXPECT_THAT(actions.disconnect, ElementsAre(Endpoint{1, 2}));
  EXPECT_THAT(actions.connect, IsEmpty()) << "the next live host is a neighbour already";
  keeper.receive(4, facts(RankFacts::Kind::death, {4, 5}), kStart);  // host 2
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{3, 6}));
}

TEST(HostControl, NewConnectionBeginsWithAllThatIsKnown) {
  Keeper keeper(10);
  keeper.receive(2, facts(RankFacts::Kind::goodbye, {19}), kStart);
  keeper.receive(2, facts(RankFacts::Kind::death, {15}), kStart);
  keeper.receive(2, Notice{6, 1, kGroup, kAbort, {}}, kStart);
  keeper.take();
  keeper.control.on_lost({4, 8}, {}, kStart);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{4, 9}));
  keeper.control.on_connected({4, 9});
  const auto sent = keeper.parsed(keeper.take(), 4);
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_TRUE(std::holds_alternative<Notice>(sent[0])) << "causes come first";
  EXPECT_THAT(ranks_of(std::get<RankFacts>(sent[1]).ranks), ElementsAre(19));
  EXPECT_THAT(ranks_of(std::get<RankFacts>(sent[2]).ranks), ElementsAre(15));
}

TEST(HostControl, HostIsDeadWhenAllItsRanksRefuse) {
  Keeper keeper(4);
  keeper.control.on_lost({2, 4}, {}, kStart);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 5}));
  keeper.control.on_refused({2, 5}, kStart + 1ms);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 4}));
  keeper.control.on_refused({2, 4}, kStart + 2ms);
  EXPECT_EQ(keeper.control.next_time(), kStart + 100ms) << "the beat";
  keeper.control.look({1, 0, 0}, kStart + 101ms);
  EXPECT_THAT(keeper.take().publish, IsEmpty());
  keeper.control.look({1, 0, 1}, kStart + 102ms);
  const auto actions = keeper.take();
  ASSERT_EQ(actions.publish.size(), 1U);
  EXPECT_THAT(ranks_of(std::get<RankFacts>(actions.publish[0]).ranks), ElementsAre(4, 5));
  EXPECT_THAT(receivers(actions), ElementsAre(1, 3));
}

TEST(HostControl, GoodbyeThatComesInTimePreventsDeath) {
  Keeper keeper(4, 1);
  keeper.control.on_lost({2, 2}, {}, kStart);
  keeper.control.on_refused({2, 2}, kStart + 1ms);
  keeper.take();
  keeper.receive(1, facts(RankFacts::Kind::goodbye, {2}), kStart + 50ms);
  keeper.control.look({1, 0, 0}, kStart + 200ms);
  for (const auto& message : keeper.take().publish) EXPECT_EQ(std::get<RankFacts>(message).kind, RankFacts::Kind::goodbye);
}

TEST(HostControl, RedirectedConnectionGoesToTheKeeper) {
  Keeper keeper(4, 3);
  keeper.control.on_lost({2, 6}, {}, kStart);
  keeper.take();
  keeper.control.on_redirected({2, 7}, 8, kStart + 1ms);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 8}));
  keeper.control.on_refused({2, 8}, kStart + 2ms);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 6}));
  keeper.control.on_redirected({2, 6}, 8, kStart + 3ms);  // it does not know yet that rank 8 has ended
  EXPECT_THAT(keeper.take().connect, IsEmpty());
  keeper.control.look({1, 0, 0}, kStart + 3ms + NeighbourLinks::kRetry);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 6}));
}

TEST(HostControl, SilentHostIsDeadStoppedProcessIsNot) {
  Keeper keeper(4);
  keeper.control.on_lost({1, 2}, 30s, kStart);
  keeper.control.on_lost({2, 4}, {}, kStart);
  keeper.take();
  keeper.control.on_silent({1, 3}, kStart + 3s);
  keeper.control.on_unanswered({2, 5}, kStart + 100s);
  EXPECT_THAT(keeper.take().connect, ElementsAre(Endpoint{2, 4}));
  keeper.control.look({1, 0, 0}, kStart + 100s);
  EXPECT_THAT(keeper.control.facts().present_ranks(1), IsEmpty());
  EXPECT_EQ(keeper.control.facts().present_ranks(2).size(), 2U);
}

TEST(HostControl, FormerKeeperPublishesAndClosesConnections) {
  Keeper keeper(4);
  keeper.receive(1, facts(RankFacts::Kind::goodbye, {2}), kStart);
  EXPECT_TRUE(keeper.take().empty());
  keeper.control.look({2, 1, 0}, kStart + 1ms);
  const auto actions = keeper.take();
  EXPECT_EQ(actions.publish.size(), 1U);
  EXPECT_EQ(actions.disconnect.size(), 3U);
  EXPECT_EQ(keeper.control.redirect(), 1);
  keeper.control.on_connected({1, 2});
  EXPECT_THAT(keeper.take().disconnect, ElementsAre(Endpoint{1, 2}));
}

TEST(HostControl, RoutesMessageToRank) {
  Keeper keeper(16);
  const RoutedMessage message{2 * 11, 1, kGroup, 6, {}};
  EXPECT_FALSE(keeper.control.on_board(message, kStart)) << "not for this rank";
  EXPECT_THAT(receivers(keeper.take()), ElementsAre(12));
  keeper.receive(8, RoutedMessage{1, 30, kGroup, 6, {}}, kStart);
  EXPECT_EQ(keeper.take().publish.size(), 1U);
  EXPECT_TRUE(keeper.control.on_board(RoutedMessage{0, 1, kGroup, 6, {}}, kStart));
}

TEST(HostControl, JunkIsReported) {
  Keeper keeper(4);
  const std::vector<std::byte> junk(20, std::byte{0xFF});
  EXPECT_FALSE(keeper.control.on_message(1, junk, kStart));
  EXPECT_TRUE(keeper.take().empty());
}

}  // namespace
}  // namespace shoal
