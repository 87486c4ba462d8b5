// Transport between threads of one process, with faults drawn from a seed: for tests of src/progress and src/runtime.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <shoal/status.h>

#include "transports/transport.h"

namespace shoal {

/// The simulated faults. The same options and seed make the same decision for the same tile of the same link in every run:
/// decisions depend on (seed, sender, receiver, number of the tile on the link) and never on time.
struct LoopbackOptions {
  std::uint64_t seed = 1;
  std::size_t tile_bytes = 64 * 1024;  ///< largest payload, 1 byte .. 64 MiB
  int capacity_tiles = 8;              ///< tiles that fit between a sender and a receiver: 2 .. 4096
  std::size_t window_bytes = 0;        ///< shared_window() of each rank; 0 = none
  std::size_t common_bytes = 0;        ///< common_memory(); 0 = none
  /// Node of each rank, 0 ..: the ranks of a node share notice_memory(). Empty: there is none.
  std::vector<int> node_of_rank = {};
  std::size_t notice_bytes = 0;  ///< of that memory, for each rank of the node

  /// Each tile becomes visible after a delay drawn uniformly from [0, 2 * mean], but not before its predecessor on the link.
  /// Links draw independently, so tiles of different links overtake each other. Zero: visible at once.
  std::chrono::microseconds mean_delay{0};
  /// Probability, 0 .. 0.9, that an attempt to send a tile is refused although there is room.
  double refuse_probability = 0;
  /// Leaves the payload in the sender's memory until the tile is due, as a network card does: sent_tiles() lags, and a caller
  /// that overwrites the memory too early sends wrong bytes.
  bool late_copy = false;
  /// kill() this rank when it has sent this many tiles, over all links (0 = once connected); -1 = no rank.
  int kill_rank = -1;
  std::uint64_t kill_after_tiles = 0;
};

/// The links between `ranks` ends. The ends keep the shared state alive: the hub may be destroyed first. Thread rule: any
/// method from any thread; each end from one thread at a time.
class LoopbackHub {
 public:
  /// Errors: invalid_argument for a number of ranks outside 1 .. kMaxHostRanks or options out of range.
  static Result<LoopbackHub> create(int ranks, const LoopbackOptions& options = {});

  /// The transport of `rank`; once for each rank. Errors: invalid_argument for a rank outside the hub, or one that has a
  /// transport.
  Result<std::unique_ptr<Transport>> make_transport(int rank);

  /// Simulates the death of the process of `rank`: tiles that it had sent still arrive when they are due, then its peers'
  /// links to it fail with peer_failed. Its own links fail at once.
  void kill(int rank);

  struct State;

 private:
  explicit LoopbackHub(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace shoal
