// The job that is to be disturbed.
#pragma once

#include <chrono>
#include <string>

#include "tests/hostile/board.h"

namespace shoal::hostile {

inline constexpr const char* kJob = "hostile";
inline constexpr const char* kFirst = "first/";    ///< before the keys of the communicator that works all the time
inline constexpr const char* kSecond = "second/";  ///< and of the one that is being made meanwhile

/// Where in the store a rank tells the attacker on what it listens; `plane`: "control", "network" or "shm".
std::string told_key(const std::string& communicator, const std::string& plane, int rank);

/// A rank: makes a communicator, sums on it again and again, and makes another one meanwhile, which gets as far as the board
/// allows. Returns what was wrong.
std::string rank_body(int rank, int port, Board& board, std::chrono::milliseconds time_limit);

}  // namespace shoal::hostile
