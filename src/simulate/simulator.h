// Simulator: predicted time of a Schedule under a simple model of the machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"

namespace shoal {

/// The result of simulate().
struct Simulation {
  double total_us = 0;                                    ///< when the last rank is done
  std::vector<double> rank_us;                            ///< when each rank is done
  std::array<std::uint64_t, kLinkClassCount> bytes{};     ///< sent over each class of link, all ranks together
  std::array<std::uint64_t, kLinkClassCount> messages{};  ///< likewise
};

/// Runs `schedule` under an alpha-beta-gamma model with the costs of its Topology.
///
/// A message of n bytes takes latency_us + n * us_per_byte (Hockney). Over a network it occupies the ports of the sender's
/// and of the receiver's node for n * us_per_byte and a part of the latency (the overhead of LogP, which makes many small
/// messages expensive). Flows of several senders to one rank slow each other down a little. Through shared memory the ranks'
/// own cores move it, once in and once out, besides their other work: copying and folding take turns on each rank. Folding an
/// operand takes reduce_us_per_byte in addition. If a node has fewer cores than ranks, the work of its cores takes that much
/// longer, and every hop, over the network too, waits for a switch to the receiving rank. A step passes its result on tile by
/// tile: the next step starts a tile later and ends no earlier than a tile after it.
///
/// Not modelled: congestion inside the network, memory bandwidth shared by a node, time lost to wake-ups. The model ranks
/// algorithms; it does not promise microseconds.
///
/// Out of place. Pure and deterministic. Error: internal if steps wait forever (verify() reports why).
Result<Simulation> simulate(const Schedule& schedule);

/// The costs of the links and cores of a topology, adjusted to the share of a core that each rank has. Inline: a choice asks
/// for the cost of ten thousands of steps.
class CostModel {
 public:
  /// `topology` must outlive the model.
  explicit CostModel(const Topology& topology);

  static constexpr std::size_t kTileBytes = 64 << 10;  ///< the unit in which steps pass results on
  static constexpr double kFlowShare = 0.03;           ///< of a wire, lost for each further sender to one rank
  static constexpr double kSwitchUs = 2;               ///< time of the kernel to give a core to another rank

  [[nodiscard]] const Topology& topology() const noexcept { return topology_; }
  /// Whether the ranks are on different nodes.
  [[nodiscard]] bool is_wire(int from, int to) const { return node_of(from) != node_of(to); }
  [[nodiscard]] double latency_us(int from, int to) const {
    // The receiving rank has to get a core first, over whatever link the message arrived.
    const double waiting = crowding(to, to);
    const double switch_us = waiting > 1 ? kSwitchUs * waiting : 0;
    return cost(from, to).latency_us * crowding(from, to) + switch_us;
  }
  /// The part of the latency in which no port is busy.
  [[nodiscard]] double flight_us(int from, int to) const {
    return latency_us(from, to) - cost(from, to).overhead() * (is_wire(from, to) ? 1 : crowding(from, to));
  }
  /// How long a message occupies a port, or the core that moves it through shared memory. `flows`: how many ranks send to
  /// `to` over a network during the call.
  [[nodiscard]] double port_us(int from, int to, std::size_t bytes, int flows = 1) const {
    const LinkCost& link = cost(from, to);
    const double meeting = is_wire(from, to) ? 1 + kFlowShare * std::max(0, flows - 1) : 1;
    // The overhead is a core's work on any link.
    return link.overhead() * crowding(from, from) +
           static_cast<double>(bytes) * link.us_per_byte * meeting * crowding(from, to);
  }
  [[nodiscard]] double reduce_us(int rank, std::size_t bytes) const {
    return static_cast<double>(bytes) * topology_.reduce_us_per_byte * crowding(rank, rank);
  }
  [[nodiscard]] double copy_us(int rank, std::size_t bytes) const {
    return static_cast<double>(bytes) * topology_.cost[static_cast<std::size_t>(LinkClass::local)].us_per_byte *
           crowding(rank, rank);
  }
  [[nodiscard]] std::size_t tile(std::size_t bytes) const { return bytes < kTileBytes ? bytes : kTileBytes; }

 private:
  [[nodiscard]] std::size_t node_of(int rank) const {
    return static_cast<std::size_t>(topology_.node_of_rank[static_cast<std::size_t>(rank)]);
  }
  [[nodiscard]] const LinkCost& cost(int from, int to) const {
    const LinkClass link = from == to ? LinkClass::local : is_wire(from, to) ? LinkClass::network : LinkClass::shared_memory;
    return topology_.cost[static_cast<std::size_t>(link)];
  }
  [[nodiscard]] double crowding(int from, int to) const {
    // The wire does not get slower when cores are short; memory that cores copy from or to does.
    return is_wire(from, to) ? 1 : crowding_[node_of(from)];
  }

  const Topology& topology_;
  std::vector<double> crowding_;  // by node: ranks per core, at least 1
};

}  // namespace shoal
