#include "torch_plugin/ddp/lane_queue.h"

namespace shoal::ddp {

std::optional<LaneQueue::Piece> LaneQueue::next() {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    auto& [waiting, in_flight] = lanes_[lane];
    if (waiting.empty()) continue;
    if (in_flight == window_) return std::nullopt;
    ++in_flight;
    const Piece piece{lane, waiting.front()};
    waiting.pop_front();
    return piece;
  }
  return std::nullopt;
}

}  // namespace shoal::ddp
