// Makes new inputs from known ones.
#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace shoal::fuzz {

/// A few random changes of one of `pool` (bits, bytes, numbers at the ends of their ranges, repeated, removed, deeply nested
/// and foreign parts), at most `longest` bytes. The same generator gives the same input.
std::string mutate(const std::vector<std::string>& pool, std::size_t longest, std::mt19937_64& random);

}  // namespace shoal::fuzz
