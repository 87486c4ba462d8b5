// A machine as a picture: NUMA nodes, and in them the GPU, NICs and cores of each rank.
#pragma once

#include <string>
#include <vector>

#include "src/machine/affinity.h"
#include "src/machine/detect.h"

namespace shoal {

/// A standalone SVG, readable on light and dark pages and in print; kinds differ by shape, line and words, not by colour alone.
/// Shows at most 64 ranks.
std::string draw_machine(const FoundMachine& machine, const std::vector<RankPlace>& places);

/// "p5.48xlarge (DMI product name), i-0..., zone use1-az4, placement group train"; "a machine of unknown type" without a type.
std::string describe_type(const FoundMachine& machine);

/// "rdmap79s0, rdmap80s0": the names of a rank's NICs; "none".
std::string nic_names(const Hardware& hardware, const std::vector<int>& nics);

/// The NUMA node of a rank's callers; -1 if unknown.
int home_of(const Hardware& hardware, const RankPlace& place);

}  // namespace shoal
