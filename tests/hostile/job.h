// The job under attack.
#pragma once

#include <chrono>
#include <string>

#include "tests/hostile/shared_state.h"

namespace shoal::hostile {

inline constexpr const char* kJob = "hostile";
inline constexpr const char* kFirst = "first/";    ///< key prefix of the communicator that works all the time
inline constexpr const char* kSecond = "second/";  ///< key prefix of the communicator that is created meanwhile

/// Key in the store under which a rank publishes its listening addresses for the attacker; `plane`: "control", "network",
/// "shm".
std::string listener_key(const std::string& communicator, const std::string& plane, int rank);

/// A rank: creates a communicator and sums on it repeatedly; meanwhile creates another one, stage by stage. Returns the error,
/// or
/// "".
std::string rank_body(int rank, int port, SharedState& state, std::chrono::milliseconds time_limit);

}  // namespace shoal::hostile
