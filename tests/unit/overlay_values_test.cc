// Values of the overlay between hosts: sets of ranks, the graph, the wire format.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>
#include <set>
#include <variant>
#include <vector>

#include "src/progress/overlay/host_graph.h"
#include "src/progress/overlay/message.h"
#include "src/progress/overlay/rank_runs.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> listed(const RankRuns& set) {
  std::vector<int> ranks;
  set.each([&](int rank) { ranks.push_back(rank); });
  return ranks;
}

std::vector<std::byte> bytes_of(const RankRuns& set) {
  ByteWriter bytes;
  set.append_to(bytes);
  return bytes.take();
}

TEST(RankRuns, AgreesWithSetOfRanks) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::set<int> model;
    std::set<int> other_model;
    RankRuns runs;
    RankRuns other;
    for (int i = 0; i < 60; ++i) {
      const auto first = static_cast<int>(random() % 100);
      const auto last = first + static_cast<int>(random() % 4);
      runs.insert({first, last});
      for (int rank = first; rank <= last; ++rank) model.insert(rank);
      const auto alone = static_cast<int>(random() % 100);
      other.insert(alone);
      other_model.insert(alone);
      if (i % 3 == 0) {
        std::vector<int> rest;
        std::ranges::set_difference(model, other_model, std::back_inserter(rest));
        ASSERT_EQ(listed(runs.without(other)), rest);
        ASSERT_EQ(listed(runs), std::vector<int>(model.begin(), model.end()));
        ASSERT_EQ(runs.count(), model.size());
        ASSERT_EQ(runs.contains(alone), model.contains(alone));
      }
    }
  }
}

TEST(RankRuns, SurvivesTheWire) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    RankRuns set;
    const auto stride = static_cast<int>(1 + random() % 9);
    for (int rank = static_cast<int>(random() % 20); rank < 1000; rank += stride) {
      if (round % 3 != 0 || random() % 3 != 0) set.insert(rank);
    }
    const auto bytes = bytes_of(set);
    ByteReader reader(bytes);
    const auto again = RankRuns::read_from(reader, 1000);
    ASSERT_TRUE(again);
    ASSERT_EQ(*again, set);
    ASSERT_EQ(reader.left(), 0U);
    ByteReader small(bytes);
    ASSERT_FALSE(RankRuns::read_from(small, set.runs().back().last)) << "a rank of no job";
  }
}

TEST(RankRuns, RegularSetsTakeFewBytes) {
  RankRuns column;
  for (int rank = 3; rank < 65536; rank += 8) column.insert(rank);
  EXPECT_LE(bytes_of(column).size(), 24U);
  EXPECT_LE(bytes_of(RankRuns::from_to(0, 65535)).size(), 24U);
  RankRuns irregular;
  for (int rank = 0; rank < 65536; rank += 1 + (rank / 3) % 3) irregular.insert(rank);
  EXPECT_LE(bytes_of(irregular).size(), 8U + 65536 / 8);
}

TEST(RankRuns, RejectsStripesThatOverlap) {
  const auto read = [](std::initializer_list<std::uint32_t> fields) {
    ByteWriter bytes;
    for (const std::uint32_t field : fields) bytes.put(field);
    const auto all = bytes.take();
    ByteReader reader(all);
    return RankRuns::read_from(reader, 100).has_value();
  };
  EXPECT_TRUE(read({0, 1, /*first*/ 5, /*length*/ 2, /*stride*/ 3, /*count*/ 4}));
  EXPECT_FALSE(read({0, 1, 5, 4, 3, 4})) << "stripes of 4 at a distance of 3";
  EXPECT_FALSE(read({0, 1, 5, 0, 3, 4})) << "no rank";
  EXPECT_FALSE(read({0, 1, 5, 2, 3, 0})) << "no stripe";
  EXPECT_FALSE(read({0, 2, 5, 2, 2, 1, 6, 2, 2, 1})) << "begins in the one before";
  EXPECT_FALSE(read({0, 1, 5, 1, 0x80000000, 0xFFFFFFFF})) << "too far";
  EXPECT_FALSE(read({0, 0xFFFFFFFF, 5, 2, 3, 4})) << "more than there are bytes";
  EXPECT_FALSE(read({2, 0})) << "no such form";
}

TEST(HostGraph, NeighboursAreThoseAtPowersOfTwo) {
  EXPECT_THAT(neighbours(0, EndedHosts(1)), IsEmpty());
  EXPECT_THAT(neighbours(0, EndedHosts(2)), ElementsAre(1));
  EXPECT_THAT(neighbours(0, EndedHosts(3)), ElementsAre(1, 2));
  EXPECT_THAT(neighbours(3, EndedHosts(10)), ElementsAre(1, 2, 4, 5, 7, 9));
  EXPECT_EQ(neighbours(7, EndedHosts(64)).size(), 11U);
  EXPECT_EQ(neighbours(7, EndedHosts(4096)).size(), 23U);
}

TEST(HostGraph, RingClosesOverEndedHosts) {
  EndedHosts ended(10);
  for (const int host : {2, 4, 5, 6}) ended.insert(host);
  EXPECT_THAT(neighbours(3, ended), ElementsAre(1, 7, 9));
  EXPECT_THAT(neighbours(7, ended), ElementsAre(1, 3, 8, 9));
  EXPECT_EQ(ended.live(), 6);
}

TEST(HostGraph, IsSymmetricAndConnected) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    const int hosts = 2 + static_cast<int>(random() % 70);
    EndedHosts ended(hosts);
    for (int host = 1; host < hosts; ++host) {
      if (random() % 10 < static_cast<std::uint64_t>(round % 10)) ended.insert(host);
    }
    std::vector<int> reached{0};
    std::set<int> seen{0};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for (const int next : neighbours(reached[i], ended)) {
        ASSERT_THAT(neighbours(next, ended), ::testing::Contains(reached[i])) << hosts << " hosts";
        if (seen.insert(next).second) reached.push_back(next);
      }
    }
    ASSERT_EQ(static_cast<int>(reached.size()), ended.live()) << hosts << " hosts";
  }
}

TEST(HostGraph, RouteTakesAtMostLogOfHostsHops) {
  constexpr int kHosts = 1000;
  const EndedHosts ended(kHosts);
  for (int to = 1; to < kHosts; ++to) {
    int hops = 0;
    for (int host = 0; host != to; ++hops) host = next_hop(host, to, kHosts, neighbours(host, ended));
    ASSERT_LE(hops, static_cast<int>(std::bit_width(static_cast<unsigned>(kHosts)))) << "to " << to;
  }
}

TEST(HostGraph, RouteAvoidsEndedHosts) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    constexpr int kHosts = 60;
    EndedHosts ended(kHosts);
    for (int host = 1; host < kHosts - 1; ++host) {
      if (random() % 3 != 0) ended.insert(host);
    }
    int hops = 0;
    for (int host = 0; host != kHosts - 1; ++hops) {
      host = next_hop(host, kHosts - 1, kHosts, neighbours(host, ended));
      ASSERT_GE(host, 0);
      ASSERT_FALSE(ended.contains(host));
      ASSERT_LT(hops, kHosts);
    }
  }
  EXPECT_EQ(next_hop(0, 5, 60, std::vector<int>{58, 59}), -1) << "no neighbour is nearer";
}

constexpr GroupName kOneGroup{7, 1};

constexpr int kRanks = 64;

std::vector<OverlayMessage> one_of_each() {
  const RankRuns some = RankRuns::of(std::vector<int>{1, 2, 3, 40, 63});
  const std::vector<std::byte> payload(3, std::byte{42});
  return {Notice{5, 77, kOneGroup, 1, payload}, RankFacts{RankFacts::Kind::farewell, kOneGroup, payload, some},
          RoutedMessage{63, 0, kOneGroup, 6, payload}};
}

TEST(OverlayWire, EachMessageSurvives) {
  for (const OverlayMessage& message : one_of_each()) {
    const auto bytes = to_bytes(message);
    const auto again = parse_overlay(bytes, kRanks);
    ASSERT_TRUE(again) << "message " << message.index();
    EXPECT_EQ(again->index(), message.index());
    EXPECT_EQ(to_bytes(*again), bytes) << "message " << message.index();
  }
}

TEST(OverlayWire, NoCutOrLongerMessageIsRead) {
  for (const OverlayMessage& message : one_of_each()) {
    auto bytes = to_bytes(message);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(parse_overlay(std::span(bytes).first(size), kRanks)) << message.index() << " cut to " << size;
    bytes.push_back({});
    EXPECT_FALSE(parse_overlay(bytes, kRanks)) << message.index() << " with a byte more";
  }
}

TEST(OverlayWire, NumbersBeyondTheJobAreRejected) {
  EXPECT_FALSE(parse_overlay(to_bytes(Notice{kRanks, 1, kOneGroup, 1, {}}), kRanks));
  EXPECT_FALSE(parse_overlay(to_bytes(RoutedMessage{kRanks, 0, kOneGroup, 1, {}}), kRanks));
  EXPECT_FALSE(parse_overlay(to_bytes(Notice{0, 1, {1, GroupName::kCheckLimit}, 1, {}}), kRanks));
}

TEST(OverlayWire, LongPayloadIsCut) {
  const std::vector<std::byte> payload(kMostNoticePayload + 100);
  const auto again = parse_overlay(to_bytes(Notice{0, 1, kOneGroup, 1, payload}), kRanks);
  ASSERT_TRUE(again);
  EXPECT_EQ(std::get<Notice>(*again).payload.size(), kMostNoticePayload);
}

TEST(OverlayWire, LargestMessageIsRead) {
  constexpr int kMostRanks = 65536;
  RankRuns irregular;
  for (int rank = 1; rank < kMostRanks; rank += 1 + (rank / 3) % 3) irregular.insert(rank);
  const RankFacts facts{RankFacts::Kind::farewell, kOneGroup, std::vector<std::byte>(kMostNoticePayload), irregular};
  EXPECT_TRUE(parse_overlay(to_bytes(facts), kMostRanks));
}

}  // namespace
}  // namespace shoal
