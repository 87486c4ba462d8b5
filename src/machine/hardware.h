// Hardware: the devices and cores of a machine that matter for communication. A plain value; src/machine fills it in.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shoal {

/// The place of a device.
struct PciPlace {
  std::string address;               ///< "0000:53:00.0"
  std::vector<std::string> bridges;  ///< above it, from the root on: "pci0000:44", "0000:44:00.0", "0000:45:00.0"
  int numa_node = -1;                ///< -1: the system does not report it
};

/// How many bridges two places have in common: 0 = none, not even the root; 1 = the root only.
int common_bridges(const PciPlace& a, const PciPlace& b);

/// An accelerator: an NVIDIA or AMD GPU for computing.
struct Gpu {
  PciPlace place;
  unsigned vendor = 0;
  unsigned device = 0;
};

/// A network device.
struct Nic {
  enum class Kind { efa, infiniband, ethernet };
  PciPlace place;
  std::string name;  ///< the system's name: "rdmap79s0", "mlx5_0", "eth0"
  Kind kind = Kind::ethernet;
  int efa_generation = 0;  ///< 1 .. 4; 0: not EFA
  double gbit_s = 0;       ///< 0: the system does not report it
  bool up = false;         ///< has a link
};
/// "EFA", "InfiniBand", "Ethernet".
std::string to_string(Nic::Kind kind);

/// Cores that share a memory.
struct NumaNode {
  int id = 0;
  std::vector<int> cores;  ///< ascending
};

struct Hardware {
  std::vector<NumaNode> numa_nodes;  ///< ascending; those without cores are left out
  std::map<int, int> sibling_of;     ///< core -> the first hardware thread of its physical core
  std::vector<Gpu> gpus;             ///< in the order of their addresses
  std::vector<Nic> nics;             ///< likewise
  int nvswitches = 0;

  /// The node that `core` is on; -1 if unknown.
  [[nodiscard]] int node_of_core(int core) const;
  /// All cores, ascending.
  [[nodiscard]] std::vector<int> cores() const;
};

/// "0-3,8,10-11" of ascending numbers.
std::string format_cores(const std::vector<int>& cores);

}  // namespace shoal
