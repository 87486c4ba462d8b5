#include "transports/rails/send_window.h"

namespace shoal::rails {
namespace {

constexpr std::uint64_t kMostMarks = 64;  // bits of arrived_after; later tiles may lie beyond them, as a packet may be old

bool is_acknowledged(const Packet& packet, std::uint64_t position) noexcept {
  if (position < packet.released || position < packet.arrived) return true;
  return position > packet.arrived && position - packet.arrived <= kMostMarks &&
         (packet.arrived_after >> (position - packet.arrived - 1) & 1) != 0;
}

}  // namespace

void SendWindow::prepare(std::byte* memory, RailsPeer* owner) {
  memory_ = memory;
  tiles_.resize(shape_.window);
  parts_ = std::vector<Part>(shape_.window * parts_per_slot_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].peer = owner;
    parts_[i].slot = static_cast<std::uint32_t>(i / parts_per_slot_);
    parts_[i].piece = static_cast<std::uint32_t>(i % parts_per_slot_);
    parts_[i].announces = i % parts_per_slot_ == parts_per_slot_ - 1;
  }
  queue_.reserve(parts_.size());
}

void SendWindow::push() noexcept {
  OutgoingTile& tile = next();
  tile.position = taken_;
  tile.arrived = false;
  if (tile.by_write) queue(announcement(taken_));
  for (std::uint32_t i = 0; i < tile.pieces; ++i) queue(part(taken_, i));
  ++taken_;
}

void SendWindow::queue(Part& part) noexcept {
  ++tiles_[part.slot].unfinished;
  queue_.push(part);
}

void SendWindow::drop_queue() noexcept {
  for (; !queue_.empty(); queue_.pop()) --tiles_[queue_.front().slot].unfinished;
}

void SendWindow::resend_from(std::size_t rail) noexcept {
  for (std::uint64_t p = released_; p < taken_; ++p) {
    if (tile(p).arrived) continue;
    for_each_part(p, [&](Part& part) {
      if (part.rail == rail && !part.queued && !part.in_flight) queue(part);
    });
  }
}

void SendWindow::resend(std::uint64_t position) noexcept {
  if (position < released_ || position >= taken_ || tile(position).arrived) return;  // a repeated request
  for_each_part(position, [&](Part& part) {
    if (part.in_flight) {
      part.resend = true;
    } else if (!part.queued) {
      queue(part);
    }
  });
}

bool SendWindow::acknowledge(const Packet& packet) noexcept {
  if (packet.released > taken_ || packet.arrived > taken_) return false;
  arrived_ = std::max(arrived_, packet.arrived);
  for (std::uint64_t p = released_; shape_.several_rails() && p < taken_; ++p) {
    if (is_acknowledged(packet, p)) tile(p).arrived = true;
  }
  released_ = std::max(released_, packet.released);
  return true;
}

bool SendWindow::is_idle() const noexcept {
  return queue_.empty() && std::all_of(tiles_.begin(), tiles_.end(), [](const auto& tile) { return tile.unfinished == 0; });
}

}  // namespace shoal::rails
