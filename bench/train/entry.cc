#include "bench/train/entry.h"

#include <algorithm>

namespace shoal::train {

std::int64_t fewest_steps(const std::vector<Entry>& entries) {
  return std::ranges::min_element(entries, {}, &Entry::step)->step();
}

std::int64_t steps_made(const std::vector<Entry>& entries) {
  std::int64_t sum = 0;
  for (const Entry& each : entries) sum += each.step();
  return sum;
}

}  // namespace shoal::train
