// How many cores this process may use, whatever the machine has.
#pragma once

#include <string>
#include <vector>

#include <shoal/status.h>

namespace shoal {

/// The cores of this process's affinity mask as text, one character each, '1' or '0', for node_cores().
std::string affinity_text();

/// The cores themselves, ascending.
std::vector<int> affinity_cores();

/// Cores that processes with these masks may use together, but no more than `quota_cores` (0 = no quota).
int node_cores(const std::vector<std::string>& masks, int quota_cores);

/// The core for the communication thread of the `local_rank`-th of `local_size` ranks of this host, as SHOAL_PROGRESS_CORES
/// says: near the NIC that the rank uses where there are several NUMA nodes and the machine tells (src/discovery), else one of
/// the last of the mask, one a rank, which leaves the first ones to the callers; -1 where there are none to spare. A list
/// counts even where the ranks have no cores to spare.
int progress_core(int local_rank, int local_size, bool spare_cores);
/// ok where SHOAL_PROGRESS_CORES makes sense; else invalid_argument.
Status check_progress_cores();

/// Whole cores that the cgroup's CPU quota allows, at least 1; 0 where there is no quota.
int quota_cores(const std::string& cgroup_root = "/sys/fs/cgroup");

/// The smaller of the affinity mask and the cgroup's CPU quota, at least 1. `cgroup_root` is settable for tests.
int allowed_cores(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace shoal
