// A machine as a picture: NUMA nodes, and in them the GPU, NICs and cores of each rank.
#pragma once

#include <string>
#include <vector>

#include "src/machine/affinity.h"
#include "src/machine/detect.h"

namespace shoal {

/// An SVG of its own, readable on light and dark pages and in print; kinds differ by shape, line and words, not by colour
/// alone. Shows at most 64 ranks.
std::string draw_machine(const FoundMachine& machine, const std::vector<RankPlace>& places);

/// "p5.48xlarge (DMI product name), i-0..., zone use1-az4, placement group train"; "a machine of no known type" without any.
std::string describe_type(const FoundMachine& machine);

/// "rdmap79s0, rdmap80s0": the names of a rank's NICs; "none".
std::string nic_names(const Hardware& hardware, const std::vector<int>& nics);

/// The NUMA node that a rank's callers are on; -1 where it is not known.
int home_of(const Hardware& hardware, const RankPlace& place);

}  // namespace shoal
