// The measurement at start-up: all ranks get the same costs, and it stays short on slow links and for many ranks.
#include "src/communicator/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/communicator/job_config.h"
#include "tests/mentions.h"
#include "tests/slack.h"
#include "transports/loopback/loopback.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

// A link around another one.
class LinkWrapper : public Link {
 public:
  explicit LinkWrapper(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  [[nodiscard]] int peer() const noexcept override { return link_->peer(); }
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept override { return link_->max_tile_bytes(); }
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override { return link_->try_send(header, data); }
  [[nodiscard]] std::uint64_t sent_tiles() const noexcept override { return link_->sent_tiles(); }
  [[nodiscard]] const Arrival* peek() noexcept override { return link_->peek(); }
  void release() noexcept override { link_->release(); }
  [[nodiscard]] const Status& status() const noexcept override { return link_->status(); }

 private:
  std::unique_ptr<Link> link_;
};

// Counts the sent tiles.
class CountingLink final : public LinkWrapper {
 public:
  CountingLink(std::unique_ptr<Link> link, std::atomic<std::uint64_t>& tiles) : LinkWrapper(std::move(link)), tiles_(tiles) {}
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    const bool sent = LinkWrapper::try_send(header, data);
    if (sent) tiles_.fetch_add(1);
    return sent;
  }

 private:
  std::atomic<std::uint64_t>& tiles_;
};

struct Shape {
  double bytes_per_s;
  double burst;
};

// Shapes like a token bucket: a burst at once, the rest at its rate.
class ShapedLink final : public LinkWrapper {
 public:
  ShapedLink(std::unique_ptr<Link> link, Shape shape) : LinkWrapper(std::move(link)), shape_(shape) {}
  bool try_send(const TileHeader& header, std::span<const std::byte> data) override {
    const auto now = Clock::now();
    tokens_ = std::min(shape_.burst, tokens_ + shape_.bytes_per_s * std::chrono::duration<double>(now - filled_).count());
    filled_ = now;
    tokens_ -= static_cast<double>(data.size());
    if (tokens_ < 0) std::this_thread::sleep_for(std::chrono::duration<double>(-tokens_ / shape_.bytes_per_s));
    return LinkWrapper::try_send(header, data);
  }

 private:
  const Shape shape_;
  double tokens_ = shape_.burst;
  Clock::time_point filled_ = Clock::now();
};

// Delivers one forged tile, whatever the peer sends.
class ForgingLink final : public LinkWrapper {
 public:
  ForgingLink(std::unique_ptr<Link> link, std::size_t bytes, std::uint32_t edge)
      : LinkWrapper(std::move(link)), bytes_(bytes), arrival_{TileHeader{}, bytes_} {
    arrival_.header.edge = edge;
    arrival_.header.size_bytes = static_cast<std::uint32_t>(bytes);
  }
  [[nodiscard]] const Arrival* peek() noexcept override { return &arrival_; }
  void release() noexcept override {}

 private:
  std::vector<std::byte> bytes_;
  Arrival arrival_;
};

/// A tile that `rank` receives but no peer has sent; rank 0 leads the measurement.
struct ForgedTile {
  int rank;
  std::size_t bytes;
  std::uint32_t edge;
};

struct Outcome {
  std::vector<Topology> topologies;  // by rank
  std::vector<std::uint64_t> tiles;  // that each rank sent
  std::vector<std::string> errors;   // by rank
};

using Pairs = std::vector<std::pair<int, int>>;

// The ranks to which `rank` has a link.
std::vector<int> peers_of(int rank, const Pairs& pairs) {
  std::vector<int> peers;
  for (const auto& [a, b] : pairs) {
    if (rank == a || rank == b) peers.push_back(rank == a ? b : a);
  }
  return peers;
}

// A rank that connects and then does nothing until another rank has ended. All ranks have this deadline.
struct IdleRank {
  int rank = 0;
  std::chrono::milliseconds deadline{};
};

// Every rank of `topology` in a thread. Only links between `pairs` exist: a use of any other would crash.
Outcome probe(const Topology& topology, const Pairs& pairs, const LoopbackOptions& wire, std::optional<Shape> shape = {},
              std::optional<ForgedTile> forged = {}, std::optional<IdleRank> idle = {}) {
  const auto size = static_cast<std::size_t>(topology.ranks());
  Outcome outcome{std::vector<Topology>(size, topology), std::vector<std::uint64_t>(size), std::vector<std::string>(size)};
  const std::string folder = fmt::format("{}/shoal-probe-{}", std::filesystem::temp_directory_path().string(), ::getpid());
  std::filesystem::create_directories(folder);
  auto hub = LoopbackHub::create(topology.ranks(), wire);
  EXPECT_TRUE(hub.ok());
  std::vector<std::unique_ptr<Transport>> transports(size);
  std::vector<std::string> addresses(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (peers_of(static_cast<int>(rank), pairs).empty()) continue;
    transports[rank] = *hub->make_transport(static_cast<int>(rank));
    addresses[rank] = transports[rank]->address();
  }

  std::vector<std::atomic<std::uint64_t>> tiles(size);
  std::atomic<bool> one_has_ended = false;
  const auto body = [&](int rank) -> Status {
    const auto at = static_cast<std::size_t>(rank);
    const auto deadline = Clock::now() + (idle ? idle->deadline : std::chrono::seconds(60));
    auto store = make_file_store(folder);
    if (!store.ok()) return store.status();
    ProgressEngineParts parts;
    parts.rank = rank;
    parts.topology = topology;
    parts.device = &host_device();
    if (transports[at] != nullptr) {
      const std::vector<int> peers = peers_of(rank, pairs);
      std::vector<std::string> theirs;
      for (const int peer : peers) theirs.push_back(addresses[static_cast<std::size_t>(peer)]);
      auto links = transports[at]->connect(peers, theirs, deadline);
      if (!links.ok()) return links.status();
      for (auto& link : *links) {
        if (shape) link = std::make_unique<ShapedLink>(std::move(link), *shape);
        if (forged && forged->rank == rank) link = std::make_unique<ForgingLink>(std::move(link), forged->bytes, forged->edge);
        parts.links.push_back(std::make_unique<CountingLink>(std::move(link), tiles[at]));
        parts.transport_of_link.push_back(0);
      }
      parts.transports.push_back(std::move(transports[at]));
    }
    if (idle && idle->rank == rank) {
      one_has_ended.wait(false);
      return {};
    }
    StartupExchange exchange(**store, rank, topology.ranks(), deadline);
    const auto costs = measure_costs(exchange, parts, true);
    if (!costs.ok()) return exchange.abort(costs.status());  // closes its links, which its peer notices
    const auto all = exchange.all_gather("ready", *costs);
    if (!all.ok()) return all.status();
    Status status = read_costs(all->front(), parts.topology);
    outcome.topologies[at] = parts.topology;
    if (!status.ok()) return status;
    // No rank leaves while its peer still receives the last tile.
    if (Status done = (*store)->set(fmt::format("done/{}", rank), ""); !done.ok()) return done;
    for (const int peer : peers_of(rank, pairs)) {
      if (const auto other = (*store)->get(fmt::format("done/{}", peer), deadline); !other.ok()) return other.status();
    }
    return status;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const Status status = body(rank);
      outcome.errors[static_cast<std::size_t>(rank)] = status.ok() ? "" : status.to_string();
      one_has_ended = true;
      one_has_ended.notify_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < size; ++i) outcome.tiles[i] = tiles[i];
  std::filesystem::remove_all(folder);
  return outcome;
}

constexpr std::uint64_t kAllRoundTrips = 28;
constexpr std::uint64_t kPauses = 4 * 10;  // their round trips
constexpr std::uint64_t kAnswers = 5 + 1 + 8;
constexpr std::uint64_t kStreams = 5 + 4 + 8 * 32;
constexpr std::uint64_t kAllTiles = kAllRoundTrips + kPauses + kStreams + 1;  // with the final tile

TEST(Probe, RanksAgreeAndFewOfThemMeasure) {
  const Outcome outcome = probe(Topology::uniform(8, 8), {{0, 1}, {0, 8}, {16, 24}, {32, 40}, {48, 56}}, {});
  for (std::size_t rank = 0; rank < 64; ++rank) {
    ASSERT_EQ(outcome.errors[rank], "") << "rank " << rank;
    const Topology& mine = outcome.topologies[rank];
    for (std::size_t i = 0; i < kLinkClassCount; ++i) {
      EXPECT_EQ(mine.cost[i].latency_us, outcome.topologies[0].cost[i].latency_us) << "rank " << rank;
      EXPECT_EQ(mine.cost[i].us_per_byte, outcome.topologies[0].cost[i].us_per_byte) << "rank " << rank;
      EXPECT_EQ(mine.cost[i].overhead_us, outcome.topologies[0].cost[i].overhead_us) << "rank " << rank;
    }
    EXPECT_EQ(mine.reduce_us_per_byte, outcome.topologies[0].reduce_us_per_byte);
    if (rank % 8 != 0 && rank != 1) {
      EXPECT_EQ(outcome.tiles[rank], 0U);
    } else if (rank > 8) {
      // Round trips at the same time as rank 0's, and nothing else: a busy machine may cut them short.
      EXPECT_GE(outcome.tiles[rank], 3U);
      EXPECT_LE(outcome.tiles[rank], kAllRoundTrips + 1);
    }
  }
  // They are measurements, not the defaults.
  for (const LinkClass wire : {LinkClass::shared_memory, LinkClass::network}) {
    const auto i = static_cast<std::size_t>(wire);
    EXPECT_GT(outcome.topologies[0].cost[i].latency_us, 0);
    EXPECT_NE(outcome.topologies[0].cost[i].latency_us, Topology().cost[i].latency_us);
    EXPECT_NE(outcome.topologies[0].cost[i].us_per_byte, Topology().cost[i].us_per_byte);
  }
  // Overhead per message is measured over a network only.
  EXPECT_GT(outcome.topologies[63].cost[static_cast<std::size_t>(LinkClass::network)].overhead_us, 0);
  EXPECT_LT(outcome.topologies[63].cost[static_cast<std::size_t>(LinkClass::shared_memory)].overhead_us, 0);
  // The tiles, which take the time: the same number for any number of ranks. A busy machine may cut them short.
  EXPECT_LE(outcome.tiles[0], 2 * kAllTiles);
  EXPECT_LE(outcome.tiles[1] + outcome.tiles[8], 2 * (kAllRoundTrips + kPauses + kAnswers));
}

TEST(Probe, UnpairedNodeMeasuresNothing) {
  const Outcome outcome = probe(Topology::ragged({1, 2, 3}), {{0, 1}}, {});
  for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
  for (const std::size_t rank : {2U, 3U, 4U, 5U}) EXPECT_EQ(outcome.tiles[rank], 0U) << "rank " << rank;
  EXPECT_GT(outcome.topologies[5].cost[static_cast<std::size_t>(LinkClass::network)].overhead_us, 0);
}

TEST(Probe, SlowLinkIsMeasuredBriefly) {
  LoopbackOptions slow;
  slow.seed = 5;
  slow.mean_delay = std::chrono::milliseconds(20);
  // After 20 ms no further round trip, and no stream of 32 tiles that would take more than 50 ms. If the thread loses its core,
  // it measures even less: try again.
  constexpr std::size_t kLeast = 3 + 1 + 1;
  Outcome outcome = probe(Topology::uniform(2, 1), {{0, 1}}, slow);
  for (int tries = 1; tries < 10 && outcome.tiles[0] < kLeast; ++tries)
    outcome = probe(Topology::uniform(2, 1), {{0, 1}}, slow);
  EXPECT_EQ(outcome.errors[0], "");
  EXPECT_EQ(outcome.errors[1], "");
  EXPECT_GE(outcome.tiles[0], kLeast);
  EXPECT_LE(outcome.tiles[0], 20U);
  const LinkCost& cost = outcome.topologies[1].cost[static_cast<std::size_t>(LinkClass::network)];
  EXPECT_GT(cost.latency_us, 1000);
}

// On a busy machine a peer may come to the measurement seconds later. So the deadline of the start-up counts, and no other.
TEST(Probe, RankIsWaitedForUntilTheDeadline) {
  for (const auto deadline : {std::chrono::milliseconds(200), std::chrono::milliseconds(6000)}) {
    const FairClock clock;
    const Outcome outcome = probe(Topology::uniform(2, 1), {{0, 1}}, {}, {}, {}, IdleRank{1, deadline});
    EXPECT_THAT(outcome.errors[0], testing::Mentions("rank 1", "startup"));
    EXPECT_GE(clock.real_seconds(), std::chrono::duration<double>(deadline).count());
    EXPECT_LT(clock.seconds(), std::chrono::duration<double>(deadline).count() + 2 * kSlack);
  }
}

TEST(Probe, DetectsBurstOfTokenBucket) {
  const auto cost_of = [](std::optional<Shape> shape) {
    const Outcome outcome = probe(Topology::uniform(2, 1), {{0, 1}}, {}, shape);
    EXPECT_EQ(outcome.errors[0], "");
    return outcome.topologies[1].cost[static_cast<std::size_t>(LinkClass::network)];
  };
  const double tile = 64 << 10;
  // If the thread loses its core, tokens accumulate, or a stream takes so long that its end looks fast: try again.
  LinkCost shaped = cost_of(Shape{1e7, 3.5 * tile});
  for (int tries = 1; tries < 10 && (shaped.burst_us_per_byte <= 0 || shaped.us_per_byte <= 0.5 * 0.1); ++tries)
    shaped = cost_of(Shape{1e7, 3.5 * tile});
  EXPECT_GT(shaped.burst_us_per_byte, 0);
  EXPECT_LT(shaped.burst_us_per_byte, 0.5 * shaped.us_per_byte);
  EXPECT_GT(shaped.us_per_byte, 0.5 * 0.1);
  // The same rate without a burst. If the thread loses its core during a stream, its first tiles look fast: try again.
  LinkCost bare = cost_of(Shape{1e7, 0});
  for (int tries = 1; tries < 10 && bare.burst_us_per_byte >= 0; ++tries) bare = cost_of(Shape{1e7, 0});
  EXPECT_LT(bare.burst_us_per_byte, 0);
}

// A link accepts tiles larger than those of the measurement, and a peer may send any request.
TEST(Probe, MalformedTileEndsProbeWithReason) {
  constexpr std::size_t kMost = 64 << 10;
  const auto error_of = [](ForgedTile forged) {
    return probe(Topology::uniform(2, 1), {{0, 1}}, {}, {}, forged).errors[static_cast<std::size_t>(forged.rank)];
  };
  EXPECT_THAT(error_of({1, kMost + 1, 0}), testing::Mentions("65537", "65536"));
  EXPECT_THAT(error_of({0, kMost + 1, 0}), testing::Mentions("65537", "65536"));
  for (const std::uint32_t request : {3U, 4U, 5U, 4000000000U}) {  // 3 and 4: swaps, which are for shared memory
    EXPECT_THAT(error_of({1, 8, request}), testing::Mentions("rank 0", std::to_string(request)));
  }
}

TEST(Packing, IsForSlowWiresOnly) {
  Topology topology;
  double& us_per_byte = topology.cost[static_cast<std::size_t>(LinkClass::network)].us_per_byte;
  us_per_byte = 1.0 / 290;  // 2.3 Gbit/s
  EXPECT_TRUE(packing_costs_little(topology));
  us_per_byte = 1.0 / 310;
  EXPECT_FALSE(packing_costs_little(topology));
}

TEST(CheckSums, AreForSlowWiresOnly) {
  Topology topology;
  double& us_per_byte = topology.cost[static_cast<std::size_t>(LinkClass::network)].us_per_byte;
  us_per_byte = 1.0 / 118;  // 1 Gbit/s
  EXPECT_TRUE(check_sums_cost_little(topology));
  us_per_byte = 1.0 / 1180;
  EXPECT_FALSE(check_sums_cost_little(topology));
}

}  // namespace
}  // namespace shoal
