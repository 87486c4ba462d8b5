#include "src/machine/affinity.h"

#include <algorithm>
#include <map>
#include <set>

namespace shoal {
namespace {

using Indices = std::vector<int>;

template <typename T>
const T& at(const std::vector<T>& all, int index) {
  return all[static_cast<std::size_t>(index)];
}

Indices on_node(const Hardware& hardware, const Indices& nics, int node) {
  Indices found;
  std::copy_if(nics.begin(), nics.end(), std::back_inserter(found),
               [&](int nic) { return node >= 0 && at(hardware.nics, nic).place.numa_node == node; });
  return found;
}

struct NearNics {
  Indices nics;
  std::string why;
};

NearNics nics_near(const Hardware& hardware, const Indices& nics, const PciPlace& place) {
  int deepest = 0;
  for (const int nic : nics) deepest = std::max(deepest, common_bridges(place, at(hardware.nics, nic).place));
  Indices nearest;
  for (const int nic : nics) {
    if (deepest > 0 && common_bridges(place, at(hardware.nics, nic).place) == deepest) nearest.push_back(nic);
  }
  if (deepest > 1) return {nearest, "same PCIe switch"};
  // All devices may be below one root; then the NUMA node of a device is more informative.
  const Indices& around = nearest.empty() ? nics : nearest;
  if (nearest.size() < nics.size() && !nearest.empty()) return {nearest, "same PCIe root"};
  if (Indices same = on_node(hardware, around, place.numa_node); !same.empty()) return {same, "same NUMA node"};
  return {around, "all NICs"};
}

/// The part of rank `index` when `nics` are divided in equal blocks among `count` ranks; with fewer NICs than ranks, the one
/// that the rank shares. Of a block larger than kMaxNicsOfRank, NICs at equal distances, because neighbours are behind the same
/// switch.
Indices part_of(const Indices& nics, std::size_t index, std::size_t count) {
  if (nics.empty()) return {};
  if (nics.size() < count) return {nics[index * nics.size() / count]};
  const std::size_t first = index * nics.size() / count;
  const std::size_t there = nics.size() / count;
  const std::size_t taken = std::min(there, kMaxNicsOfRank);
  Indices part;
  for (std::size_t i = 0; i < taken; ++i) part.push_back(nics[first + i * there / taken]);
  return part;
}

void choose_nics(const Hardware& hardware, std::vector<RankPlace>& places) {
  const Indices all = network_rails(hardware);
  std::vector<NearNics> near;
  for (const RankPlace& place : places) {
    if (place.gpu >= 0) {
      near.push_back(nics_near(hardware, all, at(hardware.gpus, place.gpu).place));
    } else if (Indices same = on_node(hardware, all, place.numa_node); !same.empty()) {
      near.push_back({same, "same NUMA node"});
    } else {
      near.push_back({all, "all NICs"});
    }
  }
  std::map<Indices, Indices> groups;  // NICs -> the ranks near to which they are
  for (std::size_t rank = 0; rank < places.size(); ++rank) groups[near[rank].nics].push_back(static_cast<int>(rank));
  for (const auto& [nics, ranks] : groups) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      RankPlace& place = places[static_cast<std::size_t>(ranks[i])];
      place.nics = part_of(nics, i, ranks.size());
      place.why = nics.empty() ? std::string() : near[static_cast<std::size_t>(ranks[i])].why;
    }
  }
  // Both ends of a link must have the same number of rails.
  std::size_t least = kMaxNicsOfRank;
  for (const RankPlace& place : places) least = std::min(least, std::max<std::size_t>(place.nics.size(), 1));
  for (RankPlace& place : places) place.nics.resize(std::min(place.nics.size(), least));
  std::map<int, int> users;
  for (const RankPlace& place : places) {
    for (const int nic : place.nics) ++users[nic];
  }
  for (RankPlace& place : places) {
    for (const int nic : place.nics) place.shares_nic_with = std::max(place.shares_nic_with, users[nic] - 1);
  }
}

/// The hardware threads of one physical core.
using PhysicalCore = std::vector<int>;

/// The allowed physical cores of each NUMA node, without nodes that have none.
std::map<int, std::vector<PhysicalCore>> physical_cores(const Hardware& hardware, const std::vector<int>& allowed) {
  const std::set<int> usable(allowed.begin(), allowed.end());
  std::map<int, std::vector<PhysicalCore>> nodes;
  for (const NumaNode& node : hardware.numa_nodes) {
    std::map<int, PhysicalCore> cores;  // by their first hardware thread
    for (const int core : node.cores) {
      if (!usable.contains(core)) continue;
      const auto first = hardware.sibling_of.find(core);
      cores[first == hardware.sibling_of.end() ? core : first->second].push_back(core);
    }
    for (auto& [first, threads] : cores) nodes[node.id].push_back(std::move(threads));
  }
  return nodes;
}

void choose_cores(const Hardware& hardware, const std::vector<int>& allowed, std::vector<RankPlace>& places) {
  auto nodes = physical_cores(hardware, allowed);
  if (nodes.empty()) return;
  std::map<int, Indices> at_home;  // NUMA node -> ranks
  std::map<int, Indices> visitors;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const RankPlace& place = places[i];
    int home = place.numa_node;
    if (!nodes.contains(home))
      home = std::next(nodes.begin(), static_cast<std::ptrdiff_t>(i * nodes.size() / places.size()))->first;
    const int nic_node = place.nics.empty() ? -1 : at(hardware.nics, place.nics.front()).place.numa_node;
    at_home[home].push_back(static_cast<int>(i));
    if (nic_node != home && nodes.contains(nic_node)) visitors[nic_node].push_back(static_cast<int>(i));
  }
  for (const auto& [node, ranks] : visitors) {
    auto& cores = nodes[node];
    for (const int rank : ranks) {
      if (cores.empty() || cores.size() <= at_home[node].size()) break;  // the node's own ranks need one each
      places[static_cast<std::size_t>(rank)].progress_cores = cores.back();
      cores.pop_back();
    }
  }
  for (const auto& [node, ranks] : at_home) {
    const auto& cores = nodes[node];
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      RankPlace& place = places[static_cast<std::size_t>(ranks[i])];
      const std::size_t first = i * cores.size() / ranks.size();
      std::size_t last = (i + 1) * cores.size() / ranks.size();
      if (last == first) last = std::min(first + 1, cores.size());  // more ranks than cores: they share
      if (place.progress_cores.empty() && last - first >= 2) place.progress_cores = cores[--last];
      for (std::size_t core = first; core < last; ++core) {
        place.cores.insert(place.cores.end(), cores[core].begin(), cores[core].end());
      }
      std::sort(place.cores.begin(), place.cores.end());
    }
  }
}

}  // namespace

int node_of_all(const Hardware& hardware, const std::vector<int>& cores) {
  const int node = cores.empty() ? -1 : hardware.node_of_core(cores.front());
  const bool all = std::all_of(cores.begin(), cores.end(), [&](int core) { return hardware.node_of_core(core) == node; });
  return all ? node : -1;
}

std::vector<int> network_rails(const Hardware& hardware) {
  for (const Nic::Kind kind : {Nic::Kind::efa, Nic::Kind::infiniband, Nic::Kind::ethernet}) {
    Indices found;
    for (std::size_t i = 0; i < hardware.nics.size(); ++i) {
      const Nic& nic = hardware.nics[i];
      // An EFA device without a driver has no name, and a cable may be missing: neither can carry data.
      if (nic.kind == kind && !nic.name.empty() && (nic.up || kind == Nic::Kind::efa)) found.push_back(static_cast<int>(i));
    }
    if (!found.empty()) return found;
  }
  return {};
}

std::vector<RankPlace> place_ranks(const Hardware& hardware, int ranks, const std::vector<int>& allowed,
                                   const std::vector<int>& bound_to) {
  std::vector<RankPlace> places(static_cast<std::size_t>(std::max(ranks, 0)));
  for (std::size_t i = 0; i < places.size(); ++i) {
    RankPlace& place = places[i];
    if (!hardware.gpus.empty()) {
      place.gpu = static_cast<int>(i % hardware.gpus.size());
      place.numa_node = at(hardware.gpus, place.gpu).place.numa_node;
    } else if (i < bound_to.size() && bound_to[i] >= 0) {
      place.numa_node = bound_to[i];
    } else if (!hardware.numa_nodes.empty()) {
      place.numa_node = hardware.numa_nodes[i * hardware.numa_nodes.size() / places.size()].id;
    }
  }
  choose_nics(hardware, places);
  for (RankPlace& place : places) {
    if (place.numa_node < 0 && !place.nics.empty()) place.numa_node = at(hardware.nics, place.nics.front()).place.numa_node;
  }
  choose_cores(hardware, allowed, places);
  return places;
}

}  // namespace shoal
