// How many cores this process may use, whatever the machine has.
#pragma once

#include <string>

namespace shoal {

/// The smaller of the affinity mask and the cgroup's CPU quota, at least 1. `cgroup_root` is settable for tests.
int allowed_cores(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace shoal
