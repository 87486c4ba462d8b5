// Manual partitions: units assigned to stages by name, and cuts by name, as positions in the chain.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/recompute.h"

namespace shoal::pipeline {

/// The position of the unit called `name`. Error: invalid_argument that names the nearest units; for the name of a part of a
/// unit ("block2.conv1" in "block2"), that cuts inside of a unit are not possible.
Result<int> find_unit(const std::vector<std::string>& units, std::string_view name);

/// The cuts in front of the named units. A text that is no unit's name may be a position: "4". Error: as find_unit().
Result<std::vector<int>> find_cuts(const std::vector<std::string>& units, const std::vector<std::string>& names);

/// The runs of units that a list of RecomputeUnits names, in rising order. Errors: as find_unit(); invalid_argument for a
/// position outside of the chain, a run that ends before it begins, and a unit that is in two runs.
Result<std::vector<UnitRun>> find_runs(const std::vector<std::string>& units, const std::vector<std::string>& list);
/// A run as find_runs() reads it: "block2..block4".
std::string to_text(const std::vector<std::string>& units, const UnitRun& run);

/// The cuts of the partition in which each named unit is in its stage and all others are in `default_stage`; the last
/// assignment of a name counts. Errors: invalid_argument for an unknown unit, a stage outside of 0..stages-1, units that nobody
/// assigned without a default stage, a unit that returns to an earlier stage than its predecessor's, and an empty stage; the
/// message names units and stages.
Result<std::vector<int>> assign_units(const std::vector<std::string>& units,
                                      const std::vector<std::pair<std::string, int>>& assignments, int stages,
                                      std::optional<int> default_stage);

}  // namespace shoal::pipeline
