#include "src/pipeline/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace shoal::pipeline {
namespace {

/// Levenshtein's distance: characters to insert, remove or replace.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_names(std::string_view name, std::span<const std::string> known) {
  constexpr std::size_t kMost = 3;
  constexpr std::size_t kLongestName = 256;  // the distance of longer names takes long and tells nothing
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (const std::string& each : known) {
    ranked.emplace_back(edits(name.substr(0, kLongestName), std::string_view(each).substr(0, kLongestName)), each);
  }
  std::ranges::stable_sort(ranked, {}, [](const auto& entry) { return entry.first; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, ranked.size()); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", ranked[i].second);
  }
  return text;
}

}  // namespace shoal::pipeline
