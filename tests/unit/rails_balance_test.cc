// How the load is shared among rails: by the speed at which what was sent has come.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "tests/ofi/paced_fabric.h"
#include "tests/unit/rails_support.h"

namespace shoal::rails {
namespace {

using testing::MemoryFabric;
using testing::MemoryRailOptions;
using testing::PacedFabric;
using testing::Pair;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kTile = 256 << 10;

struct Wires {
  std::vector<double> bytes_per_us;
  bool writes;
  double at_first = 0.9;  // of what they can carry together, when nobody knows yet how fast each is
};

class RailsBalance : public ::testing::TestWithParam<Wires> {
 protected:
  struct Progress {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
  };

  RailsBalance() : pair_(rails()) {
    for (OfiOptions& options : pair_.options) {
      options.tile_bytes = kTile;
      options.stripe_bytes = 128 << 10;
      options.write_from_bytes = 8192;
      options.clock = [this] { return by_hand_ ? now_ : Clock::now(); };
      options.fabric = std::make_shared<PacedFabric>(std::make_shared<MemoryFabric>(pair_.network), GetParam().bytes_per_us,
                                                     [this] { return by_hand_ ? std::optional(now_) : std::nullopt; });
    }
    pair_.open_and_connect();
    now_ = Clock::now();
    by_hand_ = true;
  }
  ~RailsBalance() override { by_hand_ = false; }

  // Lets both ranks send so many tiles to each other; how long that takes on these wires.
  double microseconds_for(std::uint32_t tiles) {
    const Clock::time_point start = now_;
    std::array<Progress, 2> all{};
    std::vector<std::byte> data(kTile);
    const auto whole = [&] { return all[0].received == tiles && all[1].received == tiles; };
    while (!whole() && now_ - start < std::chrono::seconds(20)) {
      now_ += std::chrono::microseconds(50);
      for (int rank = 0; rank < 2; ++rank) {
        Progress& own = all[static_cast<std::size_t>(rank)];
        pair_.ends[rank]->progress();
        Link& link = *pair_.links[rank];
        while (const Arrival* arrival = link.peek()) {
          EXPECT_EQ(arrival->header.sequence, own.received);
          EXPECT_EQ(arrival->data.front(), static_cast<std::byte>(own.received));
          EXPECT_EQ(arrival->data.back(), static_cast<std::byte>(own.received));
          ++own.received;
          link.release();
        }
        data.front() = data.back() = static_cast<std::byte>(own.sent);
        while (own.sent < tiles && link.try_send({0, own.sent, 0, kTile, 0}, data)) {
          ++own.sent;
          data.front() = data.back() = static_cast<std::byte>(own.sent);
        }
      }
    }
    EXPECT_TRUE(whole()) << pair_.links[0]->status().to_string();
    return std::chrono::duration<double, std::micro>(now_ - start).count();
  }

 private:
  static MemoryRailOptions rails() {
    MemoryRailOptions options;
    options.rails = static_cast<int>(GetParam().bytes_per_us.size());
    options.writes = GetParam().writes;
    return options;
  }

  bool by_hand_ = false;
  Clock::time_point now_;
  Pair pair_;
};

TEST_P(RailsBalance, RailsCarryNineTenthsOfTheirCapacity) {
  double sum = 0;
  for (const double rate : GetParam().bytes_per_us) sum += rate;
  double least = GetParam().at_first;
  for (const std::uint32_t tiles : {64, 256, 64}) {
    const double share = tiles * static_cast<double>(kTile) / microseconds_for(tiles) / sum;
    std::printf("%u tiles: %.1f %%\n", tiles, 100 * share);
    EXPECT_GE(share, std::exchange(least, 0.9)) << tiles << " tiles";
    EXPECT_LE(share, 1.0) << "faster than the wires";
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, RailsBalance,
                         ::testing::Values(Wires{{125, 125}, true}, Wires{{125, 62.5}, true}, Wires{{62.5, 125}, false},
                                           Wires{{125, 12.5}, true, 0.4}, Wires{{125, 62.5, 31.25}, true}));

}  // namespace
}  // namespace shoal::rails
