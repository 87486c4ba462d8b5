#include "src/join/rank_names.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal {

std::string names_of(const std::vector<int>& ranks, std::size_t count) {
  const std::size_t named = std::min(ranks.size(), kNamedRanks);
  std::string names = count == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < named; ++i) names += fmt::format("{}{}", i == 0 ? " " : ", ", ranks[i]);
  return count <= named ? names : fmt::format("{} and {} more", names, count - named);
}

std::string missing_ranks(const std::vector<int>& ranks, std::size_t count, int size) {
  return fmt::format("{} of {} did not join before the deadline", names_of(ranks, count), size);
}

}  // namespace shoal
