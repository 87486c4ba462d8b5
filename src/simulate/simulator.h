// Simulator: predicted time of a Schedule under a simple model of the machine.
#pragma once

#include <array>
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

/// The costs of the links and cores of a topology, adjusted to the share of a core that each rank has.
class CostModel {
 public:
  explicit CostModel(const Topology& topology);

  static constexpr std::size_t kTileBytes = 64 << 10;  ///< the unit in which steps pass results on
  static constexpr double kFlowShare = 0.03;           ///< of a wire, lost for each further sender to one rank
  static constexpr double kSwitchUs = 2;               ///< time of the kernel to give a core to another rank

  [[nodiscard]] double latency_us(int from, int to) const;
  /// The part of the latency in which no port is busy.
  [[nodiscard]] double flight_us(int from, int to) const;
  /// How long a message occupies a port, or the core that moves it through shared memory. `flows`: how many ranks send to
  /// `to` over a network during the call.
  [[nodiscard]] double port_us(int from, int to, std::size_t bytes, int flows = 1) const;
  [[nodiscard]] double reduce_us(int rank, std::size_t bytes) const;
  [[nodiscard]] double copy_us(int rank, std::size_t bytes) const;
  [[nodiscard]] std::size_t tile(std::size_t bytes) const { return bytes < kTileBytes ? bytes : kTileBytes; }

 private:
  [[nodiscard]] double crowding(int from, int to) const;

  const Topology& topology_;
  std::vector<double> crowding_;  // by node: ranks per core, at least 1
};

}  // namespace shoal
