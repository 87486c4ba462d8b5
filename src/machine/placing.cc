#include "src/machine/placing.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "src/machine/sysfs.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

struct ThreadPlace {
  std::vector<int> cores;
  std::string why;
};

/// One of the last cores of the mask for each rank, which leaves the first cores to the callers.
std::vector<int> one_of_last(const std::vector<int>& mask, std::size_t rank, std::size_t ranks) {
  if (mask.size() < 2 * ranks) return {};
  return {mask[mask.size() - 1 - rank]};
}

/// The cores of the mask on the node of the rank's NIC; none if that is the whole mask.
std::vector<int> on_nic_node(const Hardware& hardware, const RankPlace& place, const std::vector<int>& mask) {
  if (place.nics.empty()) return {};
  const int node = hardware.nics[static_cast<std::size_t>(place.nics.front())].place.numa_node;
  std::vector<int> there;
  std::copy_if(mask.begin(), mask.end(), std::back_inserter(there),
               [&](int core) { return node >= 0 && hardware.node_of_core(core) == node; });
  return there.size() == mask.size() ? std::vector<int>() : there;
}

ThreadPlace place_thread(const Hardware& hardware, const HostRanks& ranks, std::size_t rank, const RankPlace& place,
                         const std::string& policy) {
  const std::vector<int>& mask = ranks.masks[rank];
  const std::size_t count = ranks.masks.size();
  const bool listed = policy != "near" && policy != "last" && policy != "off";
  if (listed) {
    const auto cores = parse_cores(policy);
    if (!cores.ok() || cores->empty()) return {{}, "SHOAL_PROGRESS_CORES"};
    return {{(*cores)[rank % cores->size()]}, "SHOAL_PROGRESS_CORES"};
  }
  if (policy == "off") return {{}, "SHOAL_PROGRESS_CORES=off"};
  if (static_cast<std::size_t>(std::max(ranks.cores, 0)) < 2 * count) return {{}, "no cores to spare"};
  if (policy == "near") {
    const std::vector<int> all = hardware.cores();
    const bool whole_machine =
        static_cast<std::size_t>(ranks.cores) >= all.size() && std::includes(mask.begin(), mask.end(), all.begin(), all.end());
    if (!whole_machine) {
      auto near = on_nic_node(hardware, place, mask);
      const bool narrowed = !near.empty();
      return {std::move(near), narrowed ? "cores of the NIC's node" : "already bound or limited"};
    }
    if (!place.progress_cores.empty()) return {place.progress_cores, "near the NIC"};
  }
  auto last = one_of_last(mask, rank, count);
  const bool spare = !last.empty();
  return {std::move(last), spare ? "one of the last cores" : "no cores to spare"};
}

}  // namespace

std::vector<RankPlace> places_of(const Hardware& hardware, const HostRanks& ranks, const std::string& policy) {
  const int count = static_cast<int>(ranks.masks.size());
  std::vector<int> bound_to;
  for (const auto& mask : ranks.masks) bound_to.push_back(hardware.numa_nodes.size() < 2 ? -1 : node_of_all(hardware, mask));
  std::map<std::vector<int>, std::vector<RankPlace>> by_mask;  // usually all ranks have the same mask
  std::vector<RankPlace> places;
  for (std::size_t rank = 0; rank < ranks.masks.size(); ++rank) {
    const auto& mask = ranks.masks[rank];
    auto found = by_mask.find(mask);
    if (found == by_mask.end()) found = by_mask.emplace(mask, place_ranks(hardware, count, mask, bound_to)).first;
    RankPlace place = found->second[rank];
    ThreadPlace thread = place_thread(hardware, ranks, rank, place, policy);
    if (thread.cores != place.progress_cores) {  // then the caller gets the cores that were reserved for the thread
      place.cores.insert(place.cores.end(), place.progress_cores.begin(), place.progress_cores.end());
      std::sort(place.cores.begin(), place.cores.end());
    }
    place.progress_cores = std::move(thread.cores);
    place.progress_why = std::move(thread.why);
    places.push_back(std::move(place));
  }
  return places;
}

OwnPlace own_place(const HostRanks& ranks, int local_rank, bool with_nics) {
  const std::string root = setting("SHOAL_SYSFS_ROOT");
  Hardware hardware = read_cores(root);
  if (with_nics || hardware.numa_nodes.size() > 1) hardware = read_hardware(root);
  const RankPlace place = places_of(hardware, ranks, setting("SHOAL_PROGRESS_CORES"))[static_cast<std::size_t>(local_rank)];
  OwnPlace own{place.progress_cores, {}};
  for (const int nic : place.nics) own.nics.push_back(hardware.nics[static_cast<std::size_t>(nic)].name);
  return own;
}

}  // namespace shoal
