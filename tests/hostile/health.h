// What strangers must leave as it was in the processes of the job: memory and descriptors.
#pragma once

#include <array>
#include <string>

#include "tests/hostile/board.h"

namespace shoal::hostile {

/// Of each rank.
struct Memory {
  std::array<long, kRanks> heap_bytes{};     ///< in use
  std::array<long, kRanks> private_bytes{};  ///< that the process occupies, with the allocator's pools
};

/// As it is after the last input: sums go on all the time, and the board says what was in use after one of them. Waits for it.
Memory memory_of(const Board& board);
/// Which rank has grown; empty where none has. Sanitizers keep what was freed, so that under them nothing can be said.
std::string growth(const Memory& before, const Memory& after);

using Descriptors = std::array<long, kRanks>;

/// The fewest of a while: a rank that is held up makes a socket now and then, and closes it at once.
Descriptors descriptors_of(const Board& board);
/// Waits until every rank holds as many as before, neither more nor fewer; else which one does not.
std::string await_descriptors(const Board& board, const Descriptors& before);

}  // namespace shoal::hostile
