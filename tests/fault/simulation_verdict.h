// What must come of a simulation: see src/diagnosis/failures.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fault/simulation_ranks.h"
#include "tests/fault/simulation_scenario.h"
#include "tests/fault/simulation_system.h"

namespace shoal::testing {

/// What has happened, once all calls have ended but those of a rank that has died.
struct History {
  const Scenario& scenario;
  const std::vector<std::unique_ptr<SimulatedRank>>& ranks;
  std::optional<SimulatedClock::time_point> fault_at;    ///< nothing where the culprit was done before
  std::optional<SimulatedClock::time_point> went_on_at;  ///< the culprit, after it had stood still or been absent

  [[nodiscard]] bool is_culprit(int rank) const { return rank == scenario.culprit; }
  [[nodiscard]] bool is_dead(int rank) const { return scenario.fault == Fault::kill && fault_at && is_culprit(rank); }
};

/// What is not as it must be: wrong results, errors of another kind or with other words, errors too early or too late.
std::vector<std::string> complaints_about(const History& history);

}  // namespace shoal::testing
