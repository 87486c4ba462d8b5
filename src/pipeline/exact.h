// Exact: times, rates and weights as whole numbers, so that equal partitions compare equal on every machine.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>

namespace shoal::pipeline {

using Wide = unsigned __int128;

inline constexpr std::int64_t kMillion = 1'000'000;

/// `value` in millionths, rounded: microseconds to picoseconds. Exact for numbers that were written with at most six decimals.
inline std::int64_t millionths(double value) { return std::llround(value * static_cast<double>(kMillion)); }

/// A whole number of 256 bits: what a weighted objective needs.
struct Exact {
  Wide high = 0;
  Wide low = 0;

  auto operator<=>(const Exact&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees generated code
};

inline Exact sum(const Exact& a, const Exact& b) {
  const Wide low = a.low + b.low;
  return {a.high + b.high + (low < a.low ? 1 : 0), low};
}

/// Never overflows.
inline Exact product(Wide a, Wide b) {
  constexpr Wide kHalf = ~std::uint64_t{0};
  const Wide low = (a & kHalf) * (b & kHalf);
  const Wide left = (a >> 64) * (b & kHalf) + (low >> 64);
  const Wide right = (a & kHalf) * (b >> 64) + (left & kHalf);
  return {(a >> 64) * (b >> 64) + (left >> 64) + (right >> 64), (right << 64) | (low & kHalf)};
}

}  // namespace shoal::pipeline
