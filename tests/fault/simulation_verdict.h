// Checks the outcome of a simulation by the promises of src/diagnosis/failures.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fault/simulation_ranks.h"
#include "tests/fault/simulation_scenario.h"
#include "tests/fault/simulation_system.h"

namespace shoal::testing {

/// The outcome of a simulation, when all calls have ended except those of a dead rank.
struct History {
  const Scenario& scenario;
  const std::vector<std::unique_ptr<SimulatedRank>>& ranks;
  std::optional<SimulatedClock::time_point> fault_at;    ///< when the fault began; nothing if the culprit was done before
  std::optional<SimulatedClock::time_point> resumed_at;  ///< when the culprit continued after a pause or an absence

  [[nodiscard]] bool is_culprit(int rank) const { return rank == scenario.culprit; }
  [[nodiscard]] bool is_dead(int rank) const { return scenario.fault == Fault::kill && fault_at && is_culprit(rank); }
};

/// Everything that is wrong: results, codes and messages of errors, errors that are too early or too late.
std::vector<std::string> complaints_about(const History& history);

}  // namespace shoal::testing
