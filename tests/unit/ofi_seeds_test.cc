// Links over a fabric with all behaviour that EFA permits, for thousands of seeds. SHOAL_TEST_SEED=n replays a seed;
// SHOAL_TEST_SEEDS=n or first:n runs others than the usual ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <span>
#include <thread>
#include <vector>

#include "tests/ofi/faulty_fabric.h"
#include "tests/ofi/memory_fabric.h"
#include "tests/seeds.h"
#include "transports/ofi/ofi.h"

namespace shoal::rails {
namespace {

using testing::Draws;
using testing::FaultState;
using testing::FaultyFabric;
using testing::MemoryFabric;
using testing::MemoryNetwork;
using testing::MemoryRailOptions;
using Clock = std::chrono::steady_clock;

#ifdef SHOAL_SANITIZED
constexpr std::uint64_t kSeeds = 100;
#else
constexpr std::uint64_t kSeeds = 500;
#endif
constexpr int kMostRounds = 400'000;

/// A scenario that a seed determines.
struct Scenario {
  int ranks = 2;
  int tiles = 20;
  bool rail_dies = false;
  bool lends = false;
  MemoryRailOptions rails;
  testing::Faults faults;
  OfiOptions options;

  static Scenario of(std::uint64_t seed) {
    Draws draws(seed);
    Scenario scenario;
    scenario.ranks = 2 + static_cast<int>(draws.below(2));
    scenario.rails.rails = 1 + static_cast<int>(draws.below(3));
    scenario.rails.writes = draws.chance(0.6);
    scenario.rails.local_registration = draws.chance(0.5);
    scenario.rails.receives = draws.chance(0.3) ? 4 + draws.below(8) : 1024;
    scenario.options.tile_bytes = 512 << draws.below(5);
    scenario.options.tiles_per_peer = 2 + draws.below(7);
    scenario.options.stripe_bytes = 1024;
    scenario.options.write_from_bytes = 512 << draws.below(3);
    scenario.lends = draws.chance(0.4);
    scenario.options.lend_from_bytes = 64;
    scenario.options.registrations = {std::size_t{4} << 20, 1 + draws.below(3)};
    testing::Faults& faults = scenario.faults;
    faults.seed = seed;
    faults.show = draws.chance(0.8) ? 0.1 + 0.1 * static_cast<double>(draws.below(8)) : 1;
    faults.blank = draws.chance(0.5) ? 0.5 : 0;
    faults.again = draws.chance(0.7) ? 0.2 : 0;
    faults.storm = static_cast<int>(draws.below(30));
    if (draws.chance(0.4)) faults.max_message_bytes = 96 + 512 + draws.below(512);
    faults.no_writes = draws.chance(0.2);
    if (draws.chance(0.7)) {
      faults.segment_bytes = 128 + draws.below(512);
      faults.twice = draws.chance(0.5) ? 0.3 : 0;
    } else {
      scenario.rails.writes_take_receives = draws.chance(0.5);
    }
    scenario.rail_dies = scenario.rails.rails > 1 && draws.chance(0.4);
    if (scenario.rail_dies) {
      faults.dying_rail = static_cast<int>(draws.below(static_cast<std::uint64_t>(scenario.rails.rails)));
      faults.dying_rank = static_cast<int>(draws.below(static_cast<std::uint64_t>(scenario.ranks)));
      faults.dies_after = draws.below(40);
      faults.silent = draws.chance(0.5) ? 0.5 : 0;
    }
    faults.emulated_writes = draws.chance(0.2);
    return scenario;
  }

  /// The same with bits that change in transit, and checksums.
  static Scenario with_flips(std::uint64_t seed) {
    Scenario scenario = of(seed);
    scenario.faults.flip = 0.006;  // of a hundred segments: a third of the tiles that have so many
    scenario.options.integrity = true;
    return scenario;
  }

  /// Many pieces for many peers by any rail.
  static Scenario of_many_peers(bool writes) {
    Scenario scenario;
    scenario.ranks = 16;
    scenario.tiles = 49;
    scenario.rails.rails = 3;
    scenario.rails.writes = writes;
    scenario.rails.receives = 1 << 20;
    scenario.options.tile_bytes = 4096;
    scenario.options.tiles_per_peer = 16;
    scenario.options.stripe_bytes = 1024;
    scenario.options.write_from_bytes = 512;
    scenario.faults.max_message_bytes = 512;
    return scenario;
  }
};

/// The n-th tile from one rank to another.
struct Expected {
  TileHeader header;
  std::vector<std::byte> data;

  Expected(int from, int to, int number, std::size_t max_bytes) {
    Draws draws(static_cast<std::uint64_t>(from) << 40 ^ static_cast<std::uint64_t>(to) << 32 ^
                static_cast<std::uint64_t>(number));
    const std::size_t size = draws.chance(0.3)   ? max_bytes - draws.below(2)
                             : draws.chance(0.1) ? 0
                                                 : draws.below(max_bytes + 1);
    data.resize(size);
    for (std::byte& byte : data) byte = static_cast<std::byte>(draws.next());
    header = {static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(to),
              static_cast<std::uint32_t>(size), draws.next()};
  }
};

/// All ranks of a seed in one thread, so that it replays exactly.
class Replay {
 public:
  explicit Replay(std::uint64_t seed) : Replay(Scenario::of(seed), seed) {}
  Replay(Scenario scenario, std::uint64_t seed)
      : world_(std::move(scenario)), draws_(seed + 1), network_(std::make_shared<MemoryNetwork>(world_.rails)) {}

  /// Returns the error, or "". `flood`: first all ranks send as much as possible, and none reads a queue.
  std::string run(bool flood = false) {
    if (std::string error = connect(); !error.empty()) return error;
    state_->start();
    std::string error;
    for (int rank = 0; flood && rank < world_.ranks; ++rank) {
      for (std::size_t i = 0; i < ends_[static_cast<std::size_t>(rank)].links.size(); ++i) {
        while (send_next(rank, i)) continue;
      }
    }
    if (error.empty()) error = talk();
    if (error.empty()) error = network_->complaint();
    if (error.empty()) error = state_->overrun();
    if (error.empty() && state_->writes() > 0 && world_.faults.emulated_writes) error = "emulated writes were used";
    // A rank that leaves waits briefly for the others, so all leave together.
    std::vector<std::thread> leaving;
    for (End& end : ends_) {
      leaving.emplace_back([&end] {
        end.links.clear();
        end.transport.reset();
      });
    }
    for (std::thread& thread : leaving) thread.join();
    return error;
  }
  [[nodiscard]] std::uint64_t injected() const { return state_->injected(); }
  [[nodiscard]] bool rail_dies() const { return world_.rail_dies; }
  [[nodiscard]] bool may_write() const { return world_.rails.writes && !world_.faults.no_writes; }
  [[nodiscard]] bool is_emulated() const { return world_.faults.emulated_writes; }
  [[nodiscard]] std::uint64_t writes() const { return state_->writes(); }
  [[nodiscard]] std::uint64_t flips() const { return state_->flips(); }
  /// The most operations in flight on a rail, and the capacity of its queue.
  [[nodiscard]] std::pair<std::size_t, std::size_t> fullest() const { return state_->fullest(); }

 private:
  struct Direction {
    int sent = 0;
    int received = 0;
    std::uint64_t freed = 0;         // by sent_tiles()
    std::vector<std::size_t> sizes;  // of accepted tiles
  };
  struct End {
    std::unique_ptr<Transport> transport;
    std::vector<std::unique_ptr<Link>> links;
    std::vector<Direction> directions;
    std::vector<std::byte> memory;  // of all tiles, for the whole test
    int tiles = 0;

    [[nodiscard]] std::span<std::byte> memory_of(std::size_t link, int tile, std::size_t tile_bytes) {
      return std::span(memory).subspan((link * static_cast<std::size_t>(tiles) + static_cast<std::size_t>(tile)) * tile_bytes,
                                       tile_bytes);
    }
  };

  std::string connect() {
    const auto time = std::make_shared<Clock::time_point>(Clock::now());
    time_ = time;
    state_ = std::make_shared<FaultState>(world_.faults);
    ends_.resize(static_cast<std::size_t>(world_.ranks));
    std::vector<std::string> addresses;
    for (int rank = 0; rank < world_.ranks; ++rank) {
      End& end = ends_[static_cast<std::size_t>(rank)];
      end.tiles = world_.tiles;
      end.memory.resize(static_cast<std::size_t>(world_.ranks * world_.tiles) * world_.options.tile_bytes);
      OfiOptions options = world_.options;
      if (world_.lends) options.lasting_memory = end.memory;
      options.rank = rank;
      options.size = world_.ranks;
      options.job_id = 1;
      options.clock = [time] { return *time; };
      options.fabric = std::make_shared<FaultyFabric>(std::make_shared<MemoryFabric>(network_), state_, rank);
      auto made = make_ofi_transport(options);
      if (!made.ok()) return made.status().to_string();
      ends_[static_cast<std::size_t>(rank)].transport = std::move(*made);
      addresses.push_back(ends_[static_cast<std::size_t>(rank)].transport->address());
    }
    std::vector<std::future<Status>> connecting;
    for (int rank = 0; rank < world_.ranks; ++rank) {
      connecting.push_back(std::async(std::launch::async, [&, rank] {
        End& end = ends_[static_cast<std::size_t>(rank)];
        std::vector<int> peers;
        std::vector<std::string> theirs;
        for (int peer = 0; peer < world_.ranks; ++peer) {
          if (peer == rank) continue;
          peers.push_back(peer);
          theirs.push_back(addresses[static_cast<std::size_t>(peer)]);
        }
        auto links = end.transport->connect(peers, theirs, Clock::now() + std::chrono::seconds(60));
        if (!links.ok()) return links.status();
        end.links = std::move(*links);
        end.directions.resize(end.links.size());
        return Status();
      }));
    }
    std::string error;
    for (auto& each : connecting) {
      if (const Status status = each.get(); !status.ok()) error = status.to_string();
    }
    return error;
  }

  // False if the link does not accept the next tile, or if there is none.
  bool send_next(int rank, std::size_t i) {
    End& end = ends_[static_cast<std::size_t>(rank)];
    Link& link = *end.links[i];
    Direction& direction = end.directions[i];
    if (direction.sent == world_.tiles) return false;
    Expected tile(rank, link.peer(), direction.sent, link.max_tile_bytes());
    const std::span<std::byte> place = end.memory_of(i, direction.sent, link.max_tile_bytes());
    std::copy(tile.data.begin(), tile.data.end(), place.begin());
    const std::span<const std::byte> data = place.first(tile.data.size());
    if (!(world_.lends ? link.try_lend(tile.header, data) : link.try_send(tile.header, data))) return false;
    ++direction.sent;
    direction.sizes.push_back(tile.data.size());
    return true;
  }

  // One step of one rank. Sets `error` if a tile differs from the sent one.
  void step(int rank, std::string& error) {
    End& end = ends_[static_cast<std::size_t>(rank)];
    if (draws_.chance(0.7)) end.transport->progress();
    for (std::size_t i = 0; i < end.links.size(); ++i) {
      Link& link = *end.links[i];
      Direction& direction = end.directions[i];
      if (direction.sent < world_.tiles && draws_.chance(0.5)) send_next(rank, i);
      const std::uint64_t sent = link.sent_tiles();
      for (; direction.freed < sent; ++direction.freed) {
        const std::size_t size = direction.sizes[direction.freed];
        std::ranges::fill(end.memory_of(i, static_cast<int>(direction.freed), link.max_tile_bytes()).first(size),
                          std::byte{0xee});
      }
      const Arrival* arrival = draws_.chance(0.7) ? link.peek() : nullptr;
      if (arrival != nullptr) {
        const Expected tile(link.peer(), rank, direction.received, link.max_tile_bytes());
        const bool same = direction.received < world_.tiles && arrival->header == tile.header &&
                          arrival->data.size() == tile.data.size() &&
                          std::equal(tile.data.begin(), tile.data.end(), arrival->data.begin());
        if (!same)
          error = "rank " + std::to_string(rank) + ": tile " + std::to_string(direction.received) + " from rank " +
                  std::to_string(link.peer()) + " is lost, doubled or damaged";
        link.release();
        ++direction.received;
      }
      if (!link.status().ok()) error = "rank " + std::to_string(rank) + ": " + link.status().to_string();
    }
  }

  [[nodiscard]] bool done() const {
    for (const End& end : ends_) {
      for (std::size_t i = 0; i < end.links.size(); ++i) {
        if (end.directions[i].sent < world_.tiles || end.directions[i].received < world_.tiles) return false;
        // A tile lost silently on a rail that is not known to be dead does not count as sent.
        if (!world_.rail_dies && end.links[i]->sent_tiles() < static_cast<std::uint64_t>(world_.tiles)) return false;
      }
    }
    return true;
  }

  std::string talk() {
    std::string error;
    for (int round = 0; round < kMostRounds; ++round) {
      *time_ += std::chrono::microseconds(200);
      for (int rank = 0; rank < world_.ranks; ++rank) step(rank, error);
      if (!error.empty() || done()) return error;
    }
    for (int rank = 0; rank < world_.ranks; ++rank) {
      const End& end = ends_[static_cast<std::size_t>(rank)];
      for (std::size_t i = 0; i < end.links.size(); ++i) {
        error += " " + std::to_string(rank) + "-" + std::to_string(end.links[i]->peer()) + ": sent " +
                 std::to_string(end.directions[i].sent) + " (" + std::to_string(end.links[i]->sent_tiles()) + "), received " +
                 std::to_string(end.directions[i].received);
      }
    }
    return "it stands still;" + error;
  }

  const Scenario world_;
  Draws draws_;
  std::shared_ptr<MemoryNetwork> network_;
  std::shared_ptr<FaultState> state_;
  std::shared_ptr<Clock::time_point> time_;
  std::vector<End> ends_;
};

TEST(OfiSeeds, EveryTileArrivesOnceInOrderOverAnyFabric) {
  const auto [first, count] = shoal::testing::wanted_seeds({1, kSeeds});
  std::uint64_t injected = 0;
  std::uint64_t deaths = 0;
  std::uint64_t writes = 0;
  std::uint64_t emulated = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Replay replay(seed);
    const std::string error = replay.run();
    ASSERT_EQ(error, "") << "SHOAL_TEST_SEED=" << seed;
    injected += replay.injected();
    deaths += replay.rail_dies() ? 1 : 0;
    writes += replay.writes();
    emulated += replay.may_write() && replay.is_emulated() ? 1 : 0;
  }
  if (count < 100) return;
  EXPECT_GT(injected, 100 * count) << "the fabric was too kind";
  EXPECT_GT(deaths, count / 10);
  EXPECT_GT(writes, count);
  EXPECT_GT(emulated, count / 20);
}

TEST(OfiSeeds, NoChangedBitArrivesWithChecksums) {
  const auto [first, count] = shoal::testing::wanted_seeds({1, kSeeds});
  std::uint64_t flips = 0;
  std::uint64_t writes = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Replay replay(Scenario::with_flips(seed), seed);
    const std::string error = replay.run();
    ASSERT_EQ(error, "") << "SHOAL_TEST_SEED=" << seed;
    flips += replay.flips();
    writes += replay.writes();
  }
  if (count < 100) return;
  std::printf("%llu bits changed\n", static_cast<unsigned long long>(flips));
  EXPECT_GT(flips, count);
  EXPECT_GT(writes, count);
}

TEST(OfiSeeds, QueuesNeverOverrun) {
  for (const bool writes : {false, true}) {
    Replay replay(Scenario::of_many_peers(writes), 1);
    EXPECT_EQ(replay.run(true), "");
    EXPECT_EQ(replay.writes() > 0, writes);
    const auto [most, room] = replay.fullest();
    EXPECT_LE(most, room);
    // The bound is tight.
    EXPECT_GT(4 * most, room) << most << " of " << room;
  }
}

}  // namespace
}  // namespace shoal::rails
