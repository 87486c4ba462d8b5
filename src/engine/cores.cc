#include "src/engine/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "src/discovery/affinity.h"
#include "src/discovery/sysfs.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

/// The last cores of the mask, one a rank, where each rank has two or more.
int last_core(const std::vector<int>& mask, int local_rank, int local_size) {
  const int cores = static_cast<int>(mask.size());
  return cores < 2 * local_size ? -1 : mask[static_cast<std::size_t>(cores - 1 - local_rank)];
}

/// Near the NIC; -1 where the machine does not tell, or has no core to spare there.
int near_core(const std::vector<int>& mask, int local_rank, int local_size) {
  const std::string root = setting("SHOAL_SYSFS_ROOT");
  if (read_numa_nodes(root).size() < 2) return -1;  // a few files, where the devices are many
  const auto places = place_ranks(read_hardware(root), local_size, mask);
  const RankPlace& place = places[static_cast<std::size_t>(local_rank)];
  return place.nics.empty() || place.progress_cores.empty() ? -1 : place.progress_cores.front();
}

}  // namespace

std::vector<int> affinity_cores() {
  const std::string mask = affinity_text();
  std::vector<int> cores;
  for (std::size_t core = 0; core < mask.size(); ++core) {
    if (mask[core] == '1') cores.push_back(static_cast<int>(core));
  }
  return cores;
}

Status check_progress_cores() {
  const std::string policy = setting("SHOAL_PROGRESS_CORES");
  if (policy == "near" || policy == "last") return {};
  if (const auto listed = parse_cores(policy); listed.ok() && !listed->empty()) return {};
  return {StatusCode::invalid_argument,
          fmt::format("SHOAL_PROGRESS_CORES='{}' is neither near nor last nor a list of cores such as 11,23", policy)};
}

int progress_core(int local_rank, int local_size, bool spare_cores) {
  if (local_rank < 0 || local_rank >= local_size) return -1;
  const std::string policy = setting("SHOAL_PROGRESS_CORES");
  if (policy != "near" && policy != "last") {
    const auto listed = parse_cores(policy);
    return listed.ok() && !listed->empty() ? (*listed)[static_cast<std::size_t>(local_rank) % listed->size()] : -1;
  }
  if (!spare_cores) return -1;
  const std::vector<int> mask = affinity_cores();
  const int near = policy == "near" ? near_core(mask, local_rank, local_size) : -1;
  return near >= 0 ? near : last_core(mask, local_rank, local_size);
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
    v2 >> limit >> period;  // "max" is no number: both stay 0
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
