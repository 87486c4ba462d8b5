// The order in which the pieces of gradients are sent.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace shoal::ddp {

/// Pieces start in the order in which they were added, and at most `window` of them are in flight: enough to keep a wire
/// busy, and few enough that the piece added last does not wait long. Held pieces start after all pieces that were added
/// before release(), the last held one first.
///
/// Every rank must add, hold and release in the same order; the times at which pieces end may differ. Then all ranks start
/// the pieces in the same order. Thread rule: one thread at a time.
class PieceQueue {
 public:
  using Pieces = std::vector<std::size_t>;  ///< the caller's numbers

  explicit PieceQueue(std::size_t window) : window_(window) {}

  void add(const Pieces& pieces) { waiting_.insert(waiting_.end(), pieces.begin(), pieces.end()); }
  void hold(Pieces pieces) { held_.push_back(std::move(pieces)); }
  void release() {
    for (; !held_.empty(); held_.pop_back()) add(held_.back());
  }
  /// Takes the piece that must start now; none if no piece waits or the window is full.
  std::optional<std::size_t> next() {
    if (waiting_.empty() || in_flight_ == window_) return std::nullopt;
    ++in_flight_;
    const std::size_t piece = waiting_.front();
    waiting_.pop_front();
    return piece;
  }
  /// A piece returned by next() has ended.
  void ended() { --in_flight_; }

 private:
  std::size_t window_;
  std::size_t in_flight_ = 0;
  std::deque<std::size_t> waiting_;
  std::vector<Pieces> held_;
};

}  // namespace shoal::ddp
