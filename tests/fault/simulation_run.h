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
  std::vector<std::string> complaints;  ///< empty: everything was right
  std::uint64_t hash = 0;               ///< of all steps, their times, and the outcomes of the calls
  std::uint64_t steps = 0;
  std::chrono::nanoseconds time{};  ///< simulated
  std::size_t failed_calls = 0;
  bool fault_began = false;  ///< the culprit paused, died or aborted before it was done
};

/// Runs all ranks in this thread. The same scenario gives the same report on any machine. With SHOAL_TEST_TRACE=1 standard
/// error gets a line for every step, with the letter of SimulatedRank::step().
Report simulate(const Scenario& scenario);

}  // namespace shoal::testing
