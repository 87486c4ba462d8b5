// Where the ranks of a host belong, as the transports and the communication thread use it and `shoal topology` prints it.
#pragma once

#include <string>
#include <vector>

#include "src/machine/affinity.h"
#include "src/machine/hardware.h"

namespace shoal {

/// The ranks of a host, and what they may use of it.
struct HostRanks {
  std::vector<std::vector<int>> masks;  ///< the cores of each rank's affinity mask, ascending
  int cores = 1;                        ///< that they may use together: the masks, a quota, SHOAL_CORES
};

/// The place of each rank: place_ranks(), with the cores of its communication thread as `policy` (SHOAL_PROGRESS_CORES) says.
///
/// near: the physical core that place_ranks() keeps for it, else one of the last of the mask, where each rank has two or more
/// and all of the machine is theirs: where a launcher, a container or a quota leaves them a part of it, others may do the same,
/// and two threads on one core would be slower than none pinned. There it keeps to the cores of the NIC's node that the mask
/// has, if that has others, too. last: one of the last of the mask, one a rank. off: none. A list counts in any case.
std::vector<RankPlace> places_of(const Hardware& hardware, const HostRanks& ranks, const std::string& policy);

/// That of one of them on the machine that SHOAL_SYSFS_ROOT describes, as SHOAL_PROGRESS_CORES says, and the names of its NICs
/// where `with_nics` asks for them; without, devices are read only where several NUMA nodes make a difference.
struct OwnPlace {
  std::vector<int> progress_cores;  ///< empty: the thread may run anywhere
  std::vector<std::string> nics;
};
OwnPlace own_place(const HostRanks& ranks, int local_rank, bool with_nics);

}  // namespace shoal
