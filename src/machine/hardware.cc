#include "src/machine/hardware.h"

#include <algorithm>

namespace shoal {

int common_bridges(const PciPlace& a, const PciPlace& b) {
  const auto [end, other] = std::mismatch(a.bridges.begin(), a.bridges.end(), b.bridges.begin(), b.bridges.end());
  return static_cast<int>(end - a.bridges.begin());
}

std::string to_string(Nic::Kind kind) {
  return kind == Nic::Kind::efa ? "EFA" : kind == Nic::Kind::infiniband ? "InfiniBand" : "Ethernet";
}

int Hardware::node_of_core(int core) const {
  for (const NumaNode& node : numa_nodes) {
    if (std::binary_search(node.cores.begin(), node.cores.end(), core)) return node.id;
  }
  return -1;
}

std::vector<int> Hardware::cores() const {
  std::vector<int> all;
  for (const NumaNode& node : numa_nodes) all.insert(all.end(), node.cores.begin(), node.cores.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::string format_cores(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores.size();) {
    std::size_t last = first;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cores[first]);
    if (last > first) text += "-" + std::to_string(cores[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace shoal
