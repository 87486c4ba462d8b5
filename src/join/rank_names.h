// Several ranks in a message.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace shoal {

/// How many ranks a message names; of more it has the number.
inline constexpr std::size_t kNamedRanks = 16;

/// "rank 3", "ranks 1, 2, 3", "ranks 0, 1, .. 15 and 4 more". `ranks`: at least one, and at least kNamedRanks of `count`
/// where there are as many.
std::string names_of(const std::vector<int>& ranks, std::size_t count);
/// "rank 3 of 4 did not join before the deadline".
std::string missing_ranks(const std::vector<int>& ranks, std::size_t count, int size);

}  // namespace shoal
