// Topology: which ranks share a node, and how fast each class of link is. A plain value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shoal {

/// The classes of links that the cost model distinguishes.
enum class LinkClass : std::uint8_t { local = 0, shared_memory = 1, network = 2 };
inline constexpr int kLinkClassCount = 3;

/// Hockney's model of a link: moving n bytes takes latency_us + n * us_per_byte.
struct LinkCost {
  double latency_us = 0;
  double us_per_byte = 0;
  double overhead_us = -1;  ///< part of the latency in which an end can do nothing else (LogP's o); negative: unknown
  /// Time per byte of a short message after a pause, when a token bucket lets it pass sooner (clouds shape links this way);
  /// negative: us_per_byte.
  double burst_us_per_byte = -1;

  [[nodiscard]] double overhead() const noexcept {
    return overhead_us < 0 ? latency_us / 4 : overhead_us < latency_us ? overhead_us : latency_us;
  }
};

/// Ranks, their nodes, and the cost of each link class. Rank numbers are those of the communicator; the ranks of a node need
/// not be contiguous.
struct Topology {
  std::vector<int> node_of_rank;  ///< node index of every rank; nodes are numbered 0.. in order of their lowest rank
  std::array<LinkCost, kLinkClassCount> cost{LinkCost{0.05, 1.0 / 10000}, LinkCost{0.5, 1.0 / 5000}, LinkCost{25, 1.0 / 118}};
  double reduce_us_per_byte = 1.0 / 8000;  ///< gamma: one operand, resident in cache
  double cores_per_node = 0;               ///< cores that the ranks of a node may use together; 0 = at least one a rank
  /// Speed-up of two ranks of a node that exchange half a megabyte by one kernel copy each, compared with two copies of their
  /// own; 0: unknown.
  double one_copy_gain = 0;

  /// N nodes with L ranks each; rank = node * L + local rank.
  static Topology uniform(int nodes, int ranks_per_node);
  /// One node for each entry, with that many ranks; ranks numbered node by node. {3, 1, 2} is an uneven shape.
  static Topology ragged(const std::vector<int>& ranks_per_node);

  /// The Topology of a group: its rank i is rank `members[i]` here. Costs and cores stay.
  [[nodiscard]] Topology restricted_to(std::span<const int> members) const;

  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(node_of_rank.size()); }
  [[nodiscard]] int nodes() const noexcept;
  /// The ranks of `node`, ascending.
  [[nodiscard]] std::vector<int> ranks_of_node(int node) const;
  /// Position of `rank` among the ranks of its node.
  [[nodiscard]] int local_rank(int rank) const;
  [[nodiscard]] LinkClass link_class(int a, int b) const noexcept;
  /// "2x4", or "3+1+2" if nodes differ.
  [[nodiscard]] std::string shape() const;
};

}  // namespace shoal
