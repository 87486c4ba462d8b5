// Names of groups: how many bits tell two groups apart, and how a peer learns them.
#include "src/topology/group_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "src/progress/spill_queue.h"

namespace shoal {
namespace {

// A part of 24 bits takes as many values as a random number would; two parts together repeat none.
TEST(GroupName, UsesAllOfItsBits) {
  constexpr std::uint32_t kMany = 1 << 20;
  constexpr std::uint64_t kValues = GroupName::kCheckLimit;
  const double expected = kValues * (1 - std::exp(-static_cast<double>(kMany) / kValues));
  const std::array<int, 2> ranks{3, 65'535};
  std::array<std::vector<bool>, 4> seen;
  seen.fill(std::vector<bool>(kValues));
  std::unordered_set<std::uint64_t> pairs;
  for (std::uint32_t made = 0; made < kMany; ++made) {
    const GroupName name = GroupName().child(ranks, made);
    seen[0][name.check] = true;
    for (std::size_t part = 1; part < seen.size(); ++part) seen[part][name.key >> (20 * (part - 1)) & (kValues - 1)] = true;
    pairs.insert(name.key << 24 | name.check);
  }
  for (const auto& values : seen) EXPECT_NEAR(std::count(values.begin(), values.end(), true), expected, expected / 500);
  EXPECT_EQ(pairs.size(), kMany);
}

TEST(GroupName, BindCarriesTheWholeName) {
  for (const GroupName name : {GroupName{}, GroupName{~std::uint64_t{0}, GroupName::kCheckLimit - 1},
                               GroupName{1, GroupName::kCheckLimit / 2}, GroupName().child(std::array{0, 65'535}, 7)}) {
    for (const std::uint32_t number : {1U, kCommunicatorLimit - 1}) {
      const TileHeader header = bind_header(number, name);
      EXPECT_EQ(header.communicator, kControlTile);
      EXPECT_EQ(link_control_in(header), LinkControl::bind);
      EXPECT_EQ(header.sequence, number);
      EXPECT_EQ(name_in(header), name);
      EXPECT_EQ(header.size_bytes, 0U);
    }
  }
}

}  // namespace
}  // namespace shoal
