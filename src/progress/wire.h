// Wire: one link of a process, and what all its users need to know about it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "src/progress/spill_queue.h"
#include "src/topology/group_name.h"
#include "transports/transport.h"

namespace shoal {

class ProgressClient;

/// Tiles that are taken from one link, or copied, before the clock is read.
inline constexpr int kMostTilesInARow = 64;

/// A communicator whose number a peer has sent.
struct BoundNumber {
  GroupName name;
  ProgressClient* client = nullptr;  ///< null: not made here yet, or closed
  bool over = false;                 ///< tiles that still arrive are dropped
  bool left = false;                 ///< no more tiles arrive
};

/// Thread rule: the driver.
struct Wire {
  Link* link = nullptr;
  std::uint32_t transport = 0;                            ///< index of its transport
  std::uint64_t taken = 0;                                ///< tiles that the link has taken so far
  std::vector<std::unique_ptr<SpillQueue>> spills;        ///< by communicator; those not made here yet among them
  std::unordered_map<std::uint32_t, BoundNumber> theirs;  ///< communicators by the numbers that the peer has given them
  /// Of them, the numbers of those that have not been made here yet.
  std::unordered_map<GroupName, std::uint32_t, GroupName::Hash> unmade;
  bool active = false;                 ///< is in the TileRouter's list of wires at which tiles may stand
  bool stuck = false;                  ///< the tile at its head was there in an earlier pass already
  std::uint64_t taken_when_stuck = 0;  ///< `taken` at that time
};

}  // namespace shoal
