// The faults of the loopback transport: determined by seed and options.
#include "transports/loopback/loopback.h"

#include <gtest/gtest.h>

#include <thread>

#include "transports/loopback/channel.h"

namespace shoal {
namespace {

using namespace std::chrono_literals;
using loopback::Fate;

/// All ends of a hub, connected, for use by one thread.
struct Net {
  explicit Net(int ranks, const LoopbackOptions& options) : hub(std::move(LoopbackHub::create(ranks, options)).value()) {
    for (int r = 0; r < ranks; ++r) ends.push_back(std::move(hub.make_transport(r)).value());
    links.resize(ends.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([this, r, ranks] {
        std::vector<int> peers;
        std::vector<std::string> addresses;
        for (int p = 0; p < ranks; ++p) {
          if (p == r) continue;
          peers.push_back(p);
          addresses.push_back(ends[static_cast<std::size_t>(p)]->address());
        }
        auto made = ends[static_cast<std::size_t>(r)]->connect(peers, addresses, std::chrono::steady_clock::now() + 30s);
        ASSERT_TRUE(made.ok()) << made.status().to_string();
        links[static_cast<std::size_t>(r)] = std::move(made).value();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Link& link(int from, int to) {
    return *links[static_cast<std::size_t>(from)][static_cast<std::size_t>(to < from ? to : to - 1)];
  }

  LoopbackHub hub;
  std::vector<std::unique_ptr<Transport>> ends;
  std::vector<std::vector<std::unique_ptr<Link>>> links;
};

TEST(LoopbackFate, DependsOnSeedLinkAndTileOnly) {
  LoopbackOptions options;
  options.seed = 3;
  options.mean_delay = 100us;
  options.refuse_probability = 0.5;
  LoopbackOptions other = options;
  other.seed = 4;
  const Fate fate = Fate::of(options, 0, 1);
  int same_reverse = 0, same_seed = 0;
  std::chrono::nanoseconds sum{0};
  int refusals = 0;
  for (std::uint64_t tile = 0; tile < 1000; ++tile) {
    EXPECT_EQ(fate.delay(tile), Fate::of(options, 0, 1).delay(tile));
    EXPECT_EQ(fate.refusals(tile), Fate::of(options, 0, 1).refusals(tile));
    EXPECT_LE(fate.delay(tile), 200us);
    same_reverse += fate.delay(tile) == Fate::of(options, 1, 0).delay(tile);
    same_seed += fate.delay(tile) == Fate::of(other, 0, 1).delay(tile);
    sum += fate.delay(tile);
    refusals += fate.refusals(tile);
  }
  EXPECT_LT(same_reverse, 10);
  EXPECT_LT(same_seed, 10);
  EXPECT_GT(sum / 1000, 90us);
  EXPECT_LT(sum / 1000, 110us);
  EXPECT_GT(refusals, 800);  // half of all attempts: one refusal a tile
  EXPECT_LT(refusals, 1200);
}

TEST(Loopback, RefusesAsOftenAsTheSeedSays) {
  LoopbackOptions options;
  options.refuse_probability = 0.5;
  Net net(2, options);
  const Fate fate = Fate::of(options, 0, 1);
  for (std::uint64_t tile = 0; tile < 6; ++tile) {
    int refused = 0;
    while (!net.link(0, 1).try_send({}, {})) {
      ++refused;
      EXPECT_FALSE(net.ends[0]->prepare_wait()) << "a refusal is no reason to sleep";
      EXPECT_TRUE(net.ends[0]->progress());
    }
    EXPECT_EQ(refused, fate.refusals(tile));
  }
}

TEST(Loopback, DelaysReorderLinksButKeepOrderWithinALink) {
  LoopbackOptions options;
  options.mean_delay = 2ms;
  options.capacity_tiles = 64;
  int overtaken = 0;
  // If this thread gets no core for 4 ms, all tiles have arrived and none has overtaken another: try again.
  for (int attempt = 0; overtaken == 0 && attempt < 50; ++attempt) {
    options.seed = static_cast<std::uint64_t>(attempt);
    Net net(3, options);
    for (std::uint32_t i = 0; i < 64; ++i) {
      ASSERT_TRUE(net.link(0, 2).try_send({0, i, 0, 0, 0}, {}));
      ASSERT_TRUE(net.link(1, 2).try_send({0, i, 0, 0, 0}, {}));
    }
    std::uint32_t next[2] = {0, 0};
    while (next[0] + next[1] < 128) {
      for (int from = 0; from < 2; ++from) {
        if (const Arrival* arrival = net.link(2, from).peek()) {
          ASSERT_EQ(arrival->header.sequence, next[from]);
          ++next[from];
          net.link(2, from).release();
          overtaken += next[from] > next[1 - from] + 1;
        }
      }
    }
  }
  EXPECT_GT(overtaken, 0);
}

TEST(Loopback, LateCopyReadsTheSourceOnlyWhenTheTileIsTaken) {
  LoopbackOptions options;
  options.late_copy = true;
  Net net(2, options);
  std::byte data[4] = {std::byte{1}};
  ASSERT_TRUE(net.link(0, 1).try_send({0, 0, 0, 4, 0}, data));
  EXPECT_EQ(net.link(0, 1).sent_tiles(), 0U);
  data[0] = std::byte{2};  // an engine must not do this; the option makes it visible
  const Arrival* arrival = net.link(1, 0).peek();
  ASSERT_NE(arrival, nullptr);
  EXPECT_EQ(arrival->data[0], std::byte{2});
  EXPECT_EQ(net.link(0, 1).sent_tiles(), 1U);
}

TEST(Loopback, KillsTheRankAfterTheGivenNumberOfTiles) {
  LoopbackOptions options;
  options.kill_rank = 1;
  options.kill_after_tiles = 3;
  Net net(3, options);
  ASSERT_TRUE(net.link(1, 0).try_send({}, {}));
  ASSERT_TRUE(net.link(1, 2).try_send({}, {}));
  net.ends[0]->progress();
  EXPECT_TRUE(net.link(0, 1).status().ok());
  ASSERT_TRUE(net.link(1, 0).try_send({}, {}));
  EXPECT_FALSE(net.link(1, 0).try_send({}, {}));
  for (const int other : {0, 2}) {
    EXPECT_TRUE(net.ends[static_cast<std::size_t>(other)]->progress());
    EXPECT_EQ(net.link(other, 1).status().code(), StatusCode::peer_failed);
    EXPECT_NE(net.link(other, 1).status().message().find("rank 1"), std::string::npos);
    EXPECT_FALSE(net.link(other, 1).try_send({}, {}));
    for (int tile = 0; tile < (other == 0 ? 2 : 1); ++tile) {
      ASSERT_NE(net.link(other, 1).peek(), nullptr) << "sent before the kill";
      net.link(other, 1).release();
    }
    EXPECT_EQ(net.link(other, 1).peek(), nullptr);
    EXPECT_TRUE(net.link(other, 2 - other).status().ok()) << "the other ranks stay connected";
  }
  net.ends[1]->progress();
  EXPECT_FALSE(net.link(1, 0).status().ok());
}

TEST(Loopback, RanksOfANodeShareMemoryForNotices) {
  LoopbackOptions options;
  EXPECT_TRUE(Net(2, options).ends[0]->notice_memory().empty());
  options.node_of_rank = {0, 1, 0};
  options.notice_bytes = 100;
  Net net(3, options);
  const auto shared = net.ends[0]->notice_memory();
  ASSERT_EQ(shared.size(), 200U);
  EXPECT_EQ(net.ends[2]->notice_memory().data(), shared.data());
  EXPECT_EQ(net.ends[1]->notice_memory().size(), 100U);
  EXPECT_NE(net.ends[1]->notice_memory().data(), shared.data());
}

TEST(Loopback, EndsOfPeersInTheNodeAreReportedOnce) {
  LoopbackOptions options;
  options.node_of_rank = {0, 1, 0};
  options.notice_bytes = 100;
  Net net(3, options);
  const auto ended = [&] {
    net.ends[0]->progress();
    std::vector<Link*> links;
    net.ends[0]->take_ended(links, true);
    return links;
  };
  EXPECT_TRUE(ended().empty());
  net.hub.kill(1);
  EXPECT_TRUE(ended().empty()) << "a rank of another node";
  net.hub.kill(2);
  EXPECT_EQ(ended(), std::vector<Link*>{&net.link(0, 2)});
  EXPECT_TRUE(ended().empty()) << "reported twice";
}

TEST(Loopback, BadOptionsAreRefused) {
  const auto refused = [](int ranks, LoopbackOptions options) {
    return LoopbackHub::create(ranks, options).status().code() == StatusCode::invalid_argument;
  };
  EXPECT_TRUE(refused(0, {}));
  EXPECT_TRUE(refused(2, {.tile_bytes = 0}));
  EXPECT_TRUE(refused(2, {.capacity_tiles = 1}));
  EXPECT_TRUE(refused(2, {.mean_delay = -1us}));
  EXPECT_TRUE(refused(2, {.refuse_probability = 1.0}));
  EXPECT_TRUE(refused(2, {.kill_rank = 2}));
  EXPECT_TRUE(refused(2, {.node_of_rank = {0}}));
  EXPECT_TRUE(refused(2, {.node_of_rank = {0, 2}}));
  LoopbackHub hub = std::move(LoopbackHub::create(2)).value();
  EXPECT_FALSE(hub.make_transport(2).ok());
  EXPECT_TRUE(hub.make_transport(1).ok());
  EXPECT_FALSE(hub.make_transport(1).ok()) << "made twice";
}

}  // namespace
}  // namespace shoal
