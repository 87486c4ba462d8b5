#include "bench/train/data/sampler.h"

#include <cassert>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

namespace shoal::data {

std::vector<std::size_t> distributed_order(std::size_t size, int rank, int ranks, bool shuffle, std::uint64_t seed,
                                           std::uint64_t epoch, std::size_t skip) {
  assert(size >= 1 && size <= std::numeric_limits<std::uint32_t>::max() / 20 && rank >= 0 && rank < ranks);
  assert(skip < size);
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (shuffle) {
    // torch's CPU generator is the standard Mersenne Twister seeded with the low 32 bits; randperm is Fisher-Yates from the
    // front.
    std::mt19937 generator(static_cast<std::uint32_t>(seed + epoch));
    for (std::size_t i = 0; i + 1 < size; ++i) std::swap(order[i], order[i + generator() % (size - i)]);
  }
  const auto stride = static_cast<std::size_t>(ranks);
  const std::size_t left = size - skip;
  const std::size_t share = (left + stride - 1) / stride;
  std::vector<std::size_t> mine(share);
  for (std::size_t i = 0; i < share; ++i) mine[i] = order[skip + (i * stride + static_cast<std::size_t>(rank)) % left];
  return mine;
}

}  // namespace shoal::data
