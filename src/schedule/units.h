// Units: which steps of a Program run as one.
#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// The unit of every step: consecutive recv_reduce steps of a lane into the same target, from distinct peers, are one n-way
/// reduction and share a unit; any other step is a unit by itself. Units are numbered from 0 in the order of their first steps.
/// Precondition: lanes are in range.
std::vector<std::uint32_t> units_of_steps(const Program& program);

}  // namespace shoal
