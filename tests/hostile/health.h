// Memory and descriptors of the job's processes, which hostile connections must not change.
#pragma once

#include <array>
#include <string>

#include "tests/hostile/shared_state.h"

namespace shoal::hostile {

/// Memory use of each rank, in bytes.
struct Memory {
  std::array<long, kRanks> heap_bytes{};     ///< in use
  std::array<long, kRanks> private_bytes{};  ///< private pages of the process, with the allocator's pools
};

/// Memory use after the last input. Waits until each rank has made further sums and has reported its heap.
Memory memory_of(const SharedState& state);
/// Names the ranks that have grown; "" if none has. Always "" under sanitizers, which keep freed memory.
std::string growth(const Memory& before, const Memory& after);

using Descriptors = std::array<long, kRanks>;

/// The minimum over 50 ms: a rank that is held back opens a socket now and then and closes it at once.
Descriptors descriptors_of(const SharedState& state);
/// Waits until every rank has exactly as many descriptors as before. Names those that do not; "" if all do.
std::string await_descriptors(const SharedState& state, const Descriptors& before);

}  // namespace shoal::hostile
