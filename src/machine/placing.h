// The placement of the ranks of a host, for the transports, the progress thread and `shoal topology`.
#pragma once

#include <string>
#include <vector>

#include "src/machine/affinity.h"
#include "src/machine/hardware.h"

namespace shoal {

/// The ranks of a host, and the cores that they may use.
struct HostRanks {
  std::vector<std::vector<int>> masks;  ///< the cores of each rank's affinity mask, ascending
  int cores = 1;                        ///< number of cores for all ranks together: the masks, a quota, SHOAL_CORES
};

/// The place of each rank: place_ranks(), with the cores of its progress thread according to `policy` (SHOAL_PROGRESS_CORES).
///
/// near: the physical core that place_ranks() reserves, else one of the last cores of the mask. Only where each rank has two
/// or more cores and the ranks may use the whole machine: if a launcher, a container or a quota gives them a part of it,
/// other jobs may have the same part, and two pinned threads on one core would be slower than unpinned threads. In such a
/// part the thread may use the cores of the mask on the NIC's node, if the mask has cores of other nodes as well. last: one
/// of the last cores of the mask for each rank. off: none. A list applies in every case.
std::vector<RankPlace> places_of(const Hardware& hardware, const HostRanks& ranks, const std::string& policy);

/// The place of rank `local_rank`, on the machine that SHOAL_SYSFS_ROOT describes and by SHOAL_PROGRESS_CORES; with the names
/// of its NICs if `with_nics`. Otherwise devices are read only if there are several NUMA nodes, because else they do not
/// matter.
struct OwnPlace {
  std::vector<int> progress_cores;  ///< empty: the thread may run anywhere
  std::vector<std::string> nics;
};
OwnPlace own_place(const HostRanks& ranks, int local_rank, bool with_nics);

}  // namespace shoal
