#include "src/engine/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

namespace shoal {
namespace {

int affinity_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// cgroup v2 "cpu.max" holds "max 100000" or "150000 100000"; v1 keeps the two numbers in two files. 0 = no quota.
int quota_cores(const std::string& root) {
  std::string quota;
  double period = 0;
  if (std::ifstream v2(root + "/cpu.max"); v2 >> quota >> period) {
    if (quota == "max" || period <= 0) return 0;
    return std::max(1, static_cast<int>(std::stod(quota) / period));
  }
  double limit = -1;
  std::ifstream v1_limit(root + "/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period(root + "/cpu/cpu.cfs_period_us");
  if (v1_limit >> limit && v1_period >> period && limit > 0 && period > 0) return std::max(1, static_cast<int>(limit / period));
  return 0;
}

}  // namespace

int allowed_cores(const std::string& cgroup_root) {
  const int affinity = std::max(1, affinity_cores());
  const int quota = quota_cores(cgroup_root);
  return quota == 0 ? affinity : std::min(affinity, quota);
}

}  // namespace shoal
