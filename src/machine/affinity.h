// Which NICs, GPU and cores each rank of a machine uses: pure functions of the Hardware.
#pragma once

#include <string>
#include <vector>

#include "src/machine/hardware.h"

namespace shoal {

/// The devices and cores that a rank should use.
struct RankPlace {
  int gpu = -1;             ///< index into Hardware::gpus; -1: none
  std::vector<int> nics;    ///< indices into Hardware::nics: one or more of its own, or one that several ranks share
  int shares_nic_with = 0;  ///< other ranks that use its NICs
  int numa_node = -1;       ///< of its GPU, else of its NICs; -1: not known
  std::vector<int> cores;   ///< for the caller and its data loaders: near the GPU
  std::vector<int>
      progress_cores;        ///< hardware threads of one physical core near the NIC, not in `cores`; empty: no core to spare
  std::string why;           ///< how its NICs were chosen: "same PCIe switch", "same NUMA node", "all NICs"
  std::string progress_why;  ///< how `progress_cores` were chosen, or why there are none (src/machine/placing)
};

/// A rank takes no more NICs than a transport has rails.
constexpr std::size_t kMaxNicsOfRank = 8;

/// The NICs that carry data between hosts: EFA devices where there are any, else InfiniBand, else Ethernet with a link.
/// Indices into Hardware::nics.
std::vector<int> network_rails(const Hardware& hardware);

/// The node that has all of `cores`; -1 if there is no such node.
int node_of_all(const Hardware& hardware, const std::vector<int>& cores);

/// A place for each of `ranks` local ranks. Rank i uses GPU i (modulo the number of GPUs), in the order of PCI addresses.
///
/// NICs: those that share the most bridges with the GPU; if they share only the root or nothing, those on the GPU's NUMA node;
/// else all. GPUs with the same NICs near them get equal parts of these, or share NICs if there are fewer NICs than GPUs. All
/// ranks have the same number. Ranks without a GPU are distributed over the NUMA nodes in blocks, except ranks that a launcher
/// has bound to the cores of one node: `bound_to` holds that node for each rank (-1, or a shorter list: not bound).
/// Cores: only of `allowed`. The physical cores of each NUMA node are divided in equal blocks among the ranks of that node; the
/// last core of a block of two or more is for the progress thread. A rank whose NIC is on another node gets a core there.
std::vector<RankPlace> place_ranks(const Hardware& hardware, int ranks, const std::vector<int>& allowed,
                                   const std::vector<int>& bound_to = {});

}  // namespace shoal
