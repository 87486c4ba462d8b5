// How many of the machine's cores this process may use.
#pragma once

#include <string>
#include <vector>

#include <shoal/status.h>

namespace shoal {

/// The cores of this process's affinity mask as text, one character each, '1' or '0', for node_cores().
std::string affinity_text();

/// The cores of such a text, ascending; of this process's mask.
std::vector<int> cores_of_mask(const std::string& mask);
std::vector<int> affinity_cores();

/// Number of cores that processes with these masks may use together, at most `quota_cores` (0 = no quota).
int node_cores(const std::vector<std::string>& masks, int quota_cores);

/// ok if SHOAL_PROGRESS_CORES is valid; else invalid_argument.
Status check_progress_cores();

/// Whole cores that the cgroup's CPU quota allows, at least 1; 0 without a quota.
int quota_cores(const std::string& cgroup_root = "/sys/fs/cgroup");

/// The smaller of the affinity mask and the cgroup's CPU quota, at least 1. `cgroup_root` is settable for tests.
int allowed_cores(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace shoal
