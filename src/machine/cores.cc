#include "src/machine/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "src/machine/sysfs.h"
#include "src/settings/settings.h"

namespace shoal {

std::vector<int> cores_of_mask(const std::string& mask) {
  std::vector<int> cores;
  for (std::size_t core = 0; core < mask.size(); ++core) {
    if (mask[core] == '1') cores.push_back(static_cast<int>(core));
  }
  return cores;
}

std::vector<int> affinity_cores() { return cores_of_mask(affinity_text()); }

Status check_progress_cores() {
  const std::string policy = setting("SHOAL_PROGRESS_CORES");
  if (policy == "near" || policy == "last" || policy == "off") return {};
  if (const auto listed = parse_cores(policy); listed.ok() && !listed->empty()) return {};
  return {StatusCode::invalid_argument,
          fmt::format("SHOAL_PROGRESS_CORES='{}' is not near, last or off, nor a list of cores such as 11,23", policy)};
}

std::string affinity_text() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return "1";
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) text += CPU_ISSET(core, &set) ? '1' : '0';
  return text.substr(0, text.find_last_of('1') + 1);
}

int node_cores(const std::vector<std::string>& masks, int quota) {
  std::string all;
  for (const std::string& mask : masks) {
    all.resize(std::max(all.size(), mask.size()), '0');
    for (std::size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == '1') all[i] = '1';
    }
  }
  const int cores = std::max(1, static_cast<int>(std::count(all.begin(), all.end(), '1')));
  return quota == 0 ? cores : std::min(cores, quota);
}

// cgroup v2 "cpu.max" holds "max 100000" or "150000 100000"; v1 keeps the two numbers in two files. 0 = no quota.
int quota_cores(const std::string& root) {
  double limit = 0;
  double period = 0;
  if (std::ifstream v2(root + "/cpu.max"); v2) {
    v2 >> limit >> period;  // "max" is not a number: both stay 0
  } else {
    std::ifstream(root + "/cpu/cpu.cfs_quota_us") >> limit;
    std::ifstream(root + "/cpu/cpu.cfs_period_us") >> period;
  }
  if (!(limit > 0 && period > 0)) return 0;
  return static_cast<int>(std::clamp(limit / period, 1.0, 1e6));
}

int allowed_cores(const std::string& cgroup_root) {
  const int affinity = std::max(1, static_cast<int>(affinity_cores().size()));
  const int quota = quota_cores(cgroup_root);
  return quota == 0 ? affinity : std::min(affinity, quota);
}

}  // namespace shoal
