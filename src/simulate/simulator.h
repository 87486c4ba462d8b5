// Simulator: how long a Schedule takes under a simple model of the machine.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <shoal/status.h>

#include "src/schedule/program.h"

namespace shoal {

/// What simulate() found.
struct Simulation {
  double total_us = 0;                                    ///< when the last rank is done
  std::vector<double> rank_us;                            ///< when each rank is done
  std::array<std::uint64_t, kLinkClassCount> bytes{};     ///< sent over each class of link, all ranks together
  std::array<std::uint64_t, kLinkClassCount> messages{};  ///< likewise
};

/// Runs `schedule` under an alpha-beta-gamma model with the costs of its Topology.
///
/// A message of n bytes takes latency_us + n * us_per_byte (Hockney). Over a network it occupies the port of the sender's and
/// of the receiver's node for n * us_per_byte and a part of the latency (the overhead of LogP, which makes many small messages
/// dear). Flows of several senders that meet at one rank get in each other's way a little. Through shared memory it is the
/// ranks' own cores that move it, once in and once out, beside what they compute: copying and folding take turns on each rank.
/// Folding an operand takes reduce_us_per_byte on top. Where a node has fewer cores than ranks, what its cores do takes that
/// much longer, and every hop, the network's too, waits for a switch to the rank that receives. A step hands its result on tile
/// by tile: the next step starts a tile later and ends no earlier than a tile after it.
///
/// What it does not know: congestion inside the network, memory bandwidth shared by a node, time lost to wake-ups. It ranks
/// algorithms; it does not promise microseconds.
///
/// Out of place. Pure and deterministic. Error: internal where steps wait for ever (verify() says why).
Result<Simulation> simulate(const Schedule& schedule);

/// The costs of the links and cores of a topology, with the share of cores that each rank has taken into account.
class CostModel {
 public:
  explicit CostModel(const Topology& topology);

  static constexpr std::size_t kTileBytes = 64 << 10;  ///< the unit in which steps hand results on
  static constexpr double kFlowShare = 0.03;           ///< of a wire, that each further sender to one rank costs it
  static constexpr double kSwitchUs = 2;               ///< for the kernel to give a core to another rank

  [[nodiscard]] double latency_us(int from, int to) const;
  /// The part of the latency in which no port is busy.
  [[nodiscard]] double flight_us(int from, int to) const;
  /// How long a message keeps a port busy, or the core that moves it through shared memory.
  /// `flows`: how many ranks send to `to` over a network in the course of the call.
  [[nodiscard]] double port_us(int from, int to, std::size_t bytes, int flows = 1) const;
  [[nodiscard]] double reduce_us(int rank, std::size_t bytes) const;
  [[nodiscard]] double copy_us(int rank, std::size_t bytes) const;
  [[nodiscard]] std::size_t tile(std::size_t bytes) const { return bytes < kTileBytes ? bytes : kTileBytes; }

 private:
  [[nodiscard]] double crowding(int from, int to) const;

  const Topology& topology_;
  std::vector<double> crowding_;  // by node: ranks that share a core, at least 1
};

}  // namespace shoal
