// Which piece of a gradient goes on its way next.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace shoal::ddp {

/// Pieces start in the order in which they were added, and at most `window` of them are in flight: enough to keep a wire busy,
/// few enough that what is added last waits for little. Those that are held start after all that were added before release(),
/// the last held first.
///
/// Every rank must add, hold and release in the same order; when pieces end may differ. Then all start them in the same order.
/// Thread rule: one thread at a time.
class PieceQueue {
 public:
  using Pieces = std::vector<std::size_t>;  ///< numbers of the caller's

  explicit PieceQueue(std::size_t window) : window_(window) {}

  void add(const Pieces& pieces) { waiting_.insert(waiting_.end(), pieces.begin(), pieces.end()); }
  void hold(Pieces pieces) { held_.push_back(std::move(pieces)); }
  void release() {
    for (; !held_.empty(); held_.pop_back()) add(held_.back());
  }
  /// Takes the piece that shall start now; none where it would be too early for any.
  std::optional<std::size_t> next() {
    if (waiting_.empty() || in_flight_ == window_) return std::nullopt;
    ++in_flight_;
    const std::size_t piece = waiting_.front();
    waiting_.pop_front();
    return piece;
  }
  /// A piece that next() gave has ended.
  void ended() { --in_flight_; }

 private:
  std::size_t window_;
  std::size_t in_flight_ = 0;
  std::deque<std::size_t> waiting_;
  std::vector<Pieces> held_;
};

}  // namespace shoal::ddp
