// How messages are cut into pieces: every element is in exactly one piece, and every piece fits its slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "src/cuda/shares.h"

namespace shoal::cuda {
namespace {

TEST(Shares, PartsCoverTheCountEvenly) {
  for (const std::size_t element_bytes : {1, 2, 4, 8}) {
    for (const std::size_t count : {0, 1, 3, 15, 16, 17, 100, 4099}) {
      for (const std::size_t pieces : {1, 2, 3, 7, 100}) {
        std::size_t next = 0;
        std::size_t longest = 0;
        for (std::size_t i = 0; i < pieces; ++i) {
          const auto [first, last] = part_of(count, element_bytes, i, pieces);
          ASSERT_EQ(first, next) << count << " in " << pieces;
          ASSERT_TRUE(first == count || first * element_bytes % 16 == 0) << "not aligned to a vector";
          longest = std::max(longest, last - first);
          next = last;
        }
        EXPECT_EQ(next, count);
        const std::size_t vectors = (count * element_bytes + 15) / 16;
        EXPECT_LE(longest * element_bytes, (vectors + pieces - 1) / pieces * 16);
      }
    }
  }
}

TEST(Shares, PartsOfHugeCountsDoNotOverflow) {
  const std::size_t count = std::size_t{1} << 60;
  const std::size_t pieces = (std::size_t{1} << 30) + 1;
  EXPECT_EQ(part_of(count, 4, pieces - 1, pieces).second, count);
  const auto [first, last] = part_of(count, 4, pieces / 2, pieces);
  EXPECT_LE(last - first, count / pieces + 4);
  EXPECT_GE(last - first + 4, count / pieces);
}

/// Checks all pieces of `what` among `ranks` for slots of `slot_bytes`.
void expect_covered(const Collective& what, int ranks, std::size_t slot_bytes, bool one) {
  const Shares shares(what, ranks);
  const std::size_t pieces = shares.pieces(slot_bytes, one);
  const std::size_t element_bytes = size_of(what.type);
  std::vector<std::size_t> begins;
  std::size_t all = 0;
  for (int share = 0; share < (deals_in_shares(what.kind) ? ranks : 1); ++share) {
    begins.push_back(all);
    all += what.counts.empty() ? what.count : what.counts[static_cast<std::size_t>(share)];
  }
  std::vector<std::size_t> next = begins;
  begins.push_back(all);
  for (std::size_t i = 0; i < pieces; ++i) {
    for (const bool aligned : {false, true}) {
      const std::vector<Run> runs = shares.runs(i, pieces, aligned);
      ASSERT_EQ(runs.size() + 1, begins.size());
      std::size_t row = 0;
      for (std::size_t share = 0; share < runs.size(); ++share) {
        ASSERT_EQ(runs[share].begin, next[share]);
        ASSERT_EQ(runs[share].row, row);
        const std::size_t bytes = runs[share].count * element_bytes;
        row += aligned ? (bytes + 15) / 16 * 16 : bytes;
        ASSERT_LE(bytes, slot_bytes);
        if (aligned) next[share] += runs[share].count;
      }
      ASSERT_TRUE(one || row <= slot_bytes);
    }
  }
  for (std::size_t share = 0; share + 1 < begins.size(); ++share) ASSERT_EQ(next[share], begins[share + 1]);
  EXPECT_EQ(pieces == 0, all == 0);
}

TEST(Shares, EveryPieceFitsItsSlot) {
  for (const DataType type : {DataType::uint8, DataType::float16, DataType::float32, DataType::int64}) {
    for (const int ranks : {1, 2, 3, 8, 16}) {
      for (const std::size_t count : {0, 1, 5, 1000, 12345}) {
        for (const std::size_t slot_bytes : {4096, 8192, 65536}) {
          for (const bool one : {false, true}) {
            expect_covered({CollectiveKind::all_reduce, count, type}, ranks, slot_bytes, one);
            expect_covered({CollectiveKind::all_to_all, count, type}, ranks, slot_bytes, one);
            std::vector<std::size_t> counts;
            for (int rank = 0; rank < ranks; ++rank)
              counts.push_back(rank % 3 == 1 ? 0 : count * static_cast<std::size_t>(rank));
            Collective uneven{CollectiveKind::all_gather, std::reduce(counts.begin(), counts.end()), type};
            uneven.counts = counts;
            expect_covered(uneven, ranks, slot_bytes, one);
          }
        }
      }
    }
  }
}

TEST(Shares, InputAndOutputPartsMatchTheCollective) {
  const auto sides = [](CollectiveKind kind, int rank) {
    const Collective what{kind, 1, DataType::uint8, ReduceOp::sum, 2};
    return std::pair{given(what, rank), taken(what, rank)};
  };
  using enum CollectiveKind;
  EXPECT_EQ(sides(all_reduce, 0), (std::pair{Part::all, Part::all}));
  EXPECT_EQ(sides(broadcast, 2), (std::pair{Part::all, Part::nothing}));
  EXPECT_EQ(sides(broadcast, 0), (std::pair{Part::nothing, Part::all}));
  EXPECT_EQ(sides(reduce, 2), (std::pair{Part::all, Part::all}));
  EXPECT_EQ(sides(reduce, 0), (std::pair{Part::all, Part::nothing}));
  EXPECT_EQ(sides(gather, 2), (std::pair{Part::own, Part::all}));
  EXPECT_EQ(sides(gather, 1), (std::pair{Part::own, Part::nothing}));
  EXPECT_EQ(sides(scatter, 2), (std::pair{Part::all, Part::own}));
  EXPECT_EQ(sides(scatter, 1), (std::pair{Part::nothing, Part::own}));
  EXPECT_EQ(sides(all_gather, 1), (std::pair{Part::own, Part::all}));
  EXPECT_EQ(sides(reduce_scatter, 1), (std::pair{Part::all, Part::own}));
  EXPECT_EQ(sides(all_to_all, 1), (std::pair{Part::all, Part::all}));
  EXPECT_EQ(sides(barrier, 1), (std::pair{Part::nothing, Part::nothing}));
}

}  // namespace
}  // namespace shoal::cuda
