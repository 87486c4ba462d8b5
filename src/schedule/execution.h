// Abstract execution of a Schedule on symbols: the part of the Verifier that finds races, deadlocks and wrong results.
#pragma once

#include <vector>

#include "src/schedule/verifier.h"

namespace shoal {

/// Whether `input` and `output` are the same memory.
enum class Aliasing : std::uint8_t { out_of_place, in_place };

/// Runs `schedule` and appends the faults found to `faults`, which never grows beyond `max_faults`. Precondition: slices are
/// in range and every send has a receive of the same size.
void execute_on_symbols(const Schedule& schedule, Aliasing aliasing, std::size_t max_faults, std::vector<Fault>& faults);

}  // namespace shoal
