// Unmatched sends and receives by rank and tag, compared with a list that is searched from its front.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <unordered_map>
#include <vector>

#include "src/base/flat_map.h"
#include "src/runtime/match_queues.h"
#include "tests/seeds.h"

namespace shoal {
namespace {

TEST(FlatMapTest, MatchesStandardMap) {
  const testing::Seeds seeds = testing::wanted_seeds({0, 20});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    std::mt19937_64 random(seed);
    FlatMap<std::uint64_t> map;
    std::unordered_map<std::uint64_t, std::uint64_t> model;
    for (int step = 0; step < 4000; ++step) {
      // Adjacent keys and multiples of a power of two, so that hashes collide.
      const std::uint64_t key = random() % 3 == 0 ? random() % 64 << 32 : random() % 256;
      if (random() % 2 == 0) {
        map.put(key, static_cast<std::uint64_t>(step));
        model[key] = static_cast<std::uint64_t>(step);
      } else {
        map.erase(key);
        model.erase(key);
      }
      ASSERT_EQ(map.size(), model.size());
    }
    for (std::uint64_t key = 0; key < 256; ++key) {
      for (const std::uint64_t each : {key, key << 32}) {
        const std::uint64_t* found = map.find(each);
        ASSERT_EQ(found != nullptr, model.contains(each)) << "seed " << seed << " key " << each;
        if (found != nullptr) {
          ASSERT_EQ(*found, model[each]) << "seed " << seed << " key " << each;
        }
      }
    }
  }
}

TEST(MatchQueuesTest, ReturnsOldestOfRankAndTag) {
  struct Entry {
    int rank;
    int tag;
    int value;
  };
  const testing::Seeds seeds = testing::wanted_seeds({0, 20});
  for (std::uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    std::mt19937_64 random(seed);
    MatchQueues<int> queues;
    std::vector<Entry> model;
    for (int step = 0; step < 4000; ++step) {
      const int rank = static_cast<int>(random() % 5) - 1;
      const int tag = static_cast<int>(random() % 7) - 3;
      const auto found = std::ranges::find_if(model, [&](const Entry& each) { return each.rank == rank && each.tag == tag; });
      ASSERT_EQ(queues.oldest(rank, tag).has_value(), found != model.end()) << "seed " << seed;
      if (random() % 2 == 0) {
        queues.push(rank, tag, step);
        model.push_back({rank, tag, step});
      } else if (found != model.end()) {
        // Positions compare across queues.
        const auto other = queues.oldest(-1, tag);
        const auto its = std::ranges::find_if(model, [&](const Entry& each) { return each.rank == -1 && each.tag == tag; });
        if (other) {
          ASSERT_EQ(*other < *queues.oldest(rank, tag), its < found) << "seed " << seed;
        }
        ASSERT_EQ(queues.take(rank, tag), found->value) << "seed " << seed;
        model.erase(found);
      }
      ASSERT_EQ(queues.size(), model.size());
    }
    queues.clear();
    EXPECT_FALSE(queues.oldest(0, 0));
    queues.push(0, 0, 1);
    EXPECT_EQ(queues.take(0, 0), 1);
  }
}

}  // namespace
}  // namespace shoal
