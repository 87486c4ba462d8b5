// Mutates known inputs.
#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace shoal::fuzz {

/// A few random mutations of one input of `pool`: bits, bytes, extreme numbers, and repeated, removed, deeply nested and
/// inserted parts. Returns at most `longest` bytes. The same generator state gives the same input.
std::string mutate(const std::vector<std::string>& pool, std::size_t longest, std::mt19937_64& random);

}  // namespace shoal::fuzz
