// The overlay between hosts: which hosts are connected, and which way a message takes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

/// A set of the hosts that no longer take part: all their ranks have died or left. Thread rule: a value.
class EndedHosts {
 public:
  explicit EndedHosts(int hosts) : ended_(static_cast<std::size_t>(hosts)), live_(hosts) {}

  void insert(int host) {
    live_ -= ended_[static_cast<std::size_t>(host)] ? 0 : 1;
    ended_[static_cast<std::size_t>(host)] = true;
  }
  [[nodiscard]] bool contains(int host) const { return ended_[static_cast<std::size_t>(host)]; }
  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(ended_.size()); }
  [[nodiscard]] int live() const noexcept { return live_; }

 private:
  std::vector<bool> ended_;
  int live_;
};

// Pure functions. The graph is circulant: host h is connected with h +- 2^j modulo the number of hosts. Source: the propagation
// graph of Bosilca et al., "Failure detection and propagation in HPC systems", SC 2016. At most 2 log2 H neighbours.

/// The live neighbours of `host`, ascending. Where the next host on the ring has ended, the next live one takes its place, on
/// both sides; so the live hosts are always connected. Symmetric.
std::vector<int> neighbours(int host, const EndedHosts& ended);

/// The one of `candidates` that is nearest to host `to` on the ring; -1 where none is nearer than `from`. A hop at least halves
/// the distance while no host on the way has ended, and always reduces it: a message never returns to a host. `to` is not
/// `from`.
int next_hop(int from, int to, int hosts, std::span<const int> candidates);

}  // namespace shoal
