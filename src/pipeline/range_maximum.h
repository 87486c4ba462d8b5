// RangeMaximum: the largest of any run of numbers, in constant time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace shoal::pipeline {

/// Memory and time of construction: n log n. Thread rule: a value that refers to nothing.
class RangeMaximum {
 public:
  RangeMaximum() = default;
  explicit RangeMaximum(std::vector<std::int64_t> numbers) {
    levels_.push_back(std::move(numbers));
    for (std::size_t half = 1; 2 * half <= levels_.front().size(); half *= 2) {
      const std::vector<std::int64_t>& narrow = levels_.back();
      std::vector<std::int64_t> wide;
      for (std::size_t i = 0; i + half < narrow.size(); ++i) wide.push_back(std::max(narrow[i], narrow[i + half]));
      levels_.push_back(std::move(wide));
    }
  }

  /// Of the numbers first..end-1. Precondition: first < end <= their count.
  [[nodiscard]] std::int64_t of(std::size_t first, std::size_t end) const {
    const auto level = static_cast<std::size_t>(std::bit_width(std::max<std::size_t>(end - first, 1)) - 1);
    return std::max(levels_[level][first], levels_[level][end - (std::size_t{1} << level)]);
  }

 private:
  std::vector<std::vector<std::int64_t>> levels_;  // [l][i]: of the 2^l numbers from i on
};

}  // namespace shoal::pipeline
