// Which NICs, GPU and cores each rank of a machine uses: pure functions on what was found.
#pragma once

#include <string>
#include <vector>

#include "src/machine/hardware.h"

namespace shoal {

/// What a rank should use.
struct RankPlace {
  int gpu = -1;             ///< index into Hardware::gpus; -1: none
  std::vector<int> nics;    ///< indices into Hardware::nics; several where they are its own, one that others share else
  int shares_nic_with = 0;  ///< other ranks that use its NICs
  int numa_node = -1;       ///< of its GPU, else of its NICs; -1: not known
  std::vector<int> cores;   ///< for the caller and its data loaders: near the GPU
  std::vector<int>
      progress_cores;        ///< hardware threads of one physical core near the NIC, apart from `cores`; empty: none to spare
  std::string why;           ///< how its NICs were chosen: "same PCIe switch", "same NUMA node", "all there are"
  std::string progress_why;  ///< how the engine came to `progress_cores`, or why they are none (src/machine/placing)
};

/// A rank takes no more NICs than a transport has rails.
constexpr std::size_t kMaxNicsOfRank = 8;

/// The NICs that carry data between hosts: EFA devices where there are any, else InfiniBand, else Ethernet with a link.
/// Indices into Hardware::nics.
std::vector<int> network_rails(const Hardware& hardware);

/// The node that has all of `cores`; -1 where several have some, or none.
int node_of_all(const Hardware& hardware, const std::vector<int>& cores);

/// A place for each of `ranks` local ranks, of which rank i uses GPU i (modulo their number), in the order of PCI addresses.
///
/// NICs: those that have the most bridges in common with the GPU; where only the root is in common, or nothing, those on its
/// NUMA node; else all. GPUs with the same NICs near them get equal parts, or share where NICs are fewer; every rank has as
/// many. Ranks without a GPU are dealt out over the NUMA nodes in blocks, but for those that a launcher has bound to the cores
/// of one node: `bound_to` names it for each rank (-1, or a list that ends earlier: it has not). Cores: of `allowed` alone.
/// Each NUMA node's physical cores go in equal blocks to the ranks at home there; the last of a block is for communication,
/// where the block has two or more. A rank whose NIC is on another node gets one there.
std::vector<RankPlace> place_ranks(const Hardware& hardware, int ranks, const std::vector<int>& allowed,
                                   const std::vector<int>& bound_to = {});

}  // namespace shoal
