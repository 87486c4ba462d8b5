// Runs a scenario of the engine's simulation.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fault/simulation_scenario.h"

namespace shoal::testing {

/// What happened in one simulation.
struct Report {
  std::vector<std::string> complaints;  ///< empty: all was as it must be
  std::uint64_t hash = 0;               ///< of every step, its time, and what each call ended with
  std::uint64_t steps = 0;
  std::chrono::nanoseconds time{};  ///< that has passed in it
  std::size_t failed_calls = 0;
  bool fault_began = false;  ///< the culprit stood still, died or aborted before it was done
};

/// All ranks in this thread. The same scenario gives the same report, whatever else the machine does. With SHOAL_TEST_TRACE=1
/// every step is shown on standard error: SimulatedRank::step() has the letters.
Report simulate(const Scenario& scenario);

}  // namespace shoal::testing
