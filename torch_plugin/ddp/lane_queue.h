// Which piece of a gradient goes on its way next.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

namespace shoal::ddp {

/// Pieces wait in lanes; lane 0 is the most urgent. Within a lane they start in the order in which they came, and at most
/// `window` of them are in flight: enough to keep a wire busy, few enough that what is more urgent waits for little. No piece
/// starts while one of a more urgent lane waits.
///
/// Only the order within a lane has to be the same on all ranks, and it is where all ranks add the same pieces in the same
/// order; what happens between lanes each rank decides alone, by what is ready and what is done there. No piece waits for one
/// of a less urgent lane, so that ranks cannot wait for each other in a circle.
///
/// Sources of the idea: Jayarajan et al., "Priority-based parameter propagation for distributed DNN training" (P3), MLSys 2019;
/// Peng et al., "A generic communication scheduler for distributed DNN training acceleration" (ByteScheduler), SOSP 2019.
/// Thread rule: one thread at a time.
class LaneQueue {
 public:
  struct Piece {
    std::size_t lane = 0;
    std::size_t id = 0;  ///< the caller's
    bool operator==(const Piece&) const = default;
  };

  LaneQueue(std::size_t lanes, std::size_t window) : lanes_(lanes), window_(window) {}

  void add(Piece piece) { lanes_[piece.lane].waiting.push_back(piece.id); }
  /// Takes the piece that shall start now; none where it would be too early for any.
  std::optional<Piece> next();
  /// A piece of `lane` that next() gave has ended.
  void ended(std::size_t lane) { --lanes_[lane].in_flight; }

 private:
  struct Lane {
    std::deque<std::size_t> waiting;
    std::size_t in_flight = 0;
  };
  std::vector<Lane> lanes_;
  std::size_t window_;
};

}  // namespace shoal::ddp
