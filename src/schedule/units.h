// Units: the groups of steps of a Program that run as one.
#pragma once

#include <cstdint>
#include <vector>

#include "src/schedule/program.h"

namespace shoal {

/// The unit of every step: the steps of one n-way reduction (see Program) share a unit; any other step is a unit by itself.
/// Units are numbered from 0 in the order of their first steps. Precondition: lanes and peers are in range.
std::vector<std::uint32_t> units_of_steps(const Topology& topology, const Program& program);

}  // namespace shoal
