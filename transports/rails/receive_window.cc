#include "transports/rails/receive_window.h"

#include <cassert>
#include <cstring>
#include <utility>

#include "transports/common/checksum.h"

namespace shoal::rails {

bool ReceiveWindow::prepare() {
  const bool writes = shape_.write_from > 0;
  const bool uses_slots = shape_.max_pieces() > 1 || writes;
  if (uses_slots) slots_ = Memory(shape_.window * shape_.slot_bytes());
  if (writes) checked_ = Memory(shape_.window * shape_.slot_bytes());  // its pages are allocated when there are checksums
  incoming_.resize(shape_.window);
  return (!uses_slots || slots_.data() != nullptr) && (!writes || checked_.data() != nullptr);
}

ReceiveWindow::Incoming* ReceiveWindow::incoming_for(std::uint64_t position) noexcept {
  if (position < released_ || position - released_ >= shape_.window) return nullptr;
  Incoming& incoming = incoming_[position % shape_.window];
  return incoming.complete ? nullptr : &incoming;  // a duplicate
}

Receipt ReceiveWindow::accept(const Packet& packet, Receive& receive, std::span<const std::byte> payload) {
  const bool announces = packet.kind == PacketKind::announce;
  if (announces != shape_.is_written(packet.tile.size_bytes)) return {Receipt::Kind::unexpected};  // both ends know the rule
  ++arrivals_[receive.rail];
  Incoming* const incoming = incoming_for(packet.position);
  if (incoming == nullptr) return {Receipt::Kind::duplicate};
  if (incoming->pieces == 0) {
    incoming->pieces = packet.pieces;
    incoming->tile = packet.tile;
    incoming->has_checksum = packet.has_checksum;
    incoming->checksum = packet.checksum;
    // Drops the bits of pieces that the tile does not have.
    incoming->have &= ~std::bitset<kMaxPieces>{} >> (kMaxPieces - (announces ? packet.pieces : 0));
    incoming->got = static_cast<std::uint32_t>(incoming->have.count());
  }
  if (incoming->pieces != packet.pieces || incoming->tile != packet.tile) return {};
  if (announces) {
    incoming->announced = true;
    return finish(*incoming, packet.position);
  }
  const Extent extent = piece_extent(packet.tile.size_bytes, packet.pieces, packet.piece);
  if (incoming->have[packet.piece] || payload.size() != extent.bytes) return {};
  if (packet.pieces == 1) {
    incoming->held = &receive;
    incoming->data = payload;
  } else {
    if (slots_.size() == 0) return {};
    std::memcpy(slot_memory(packet.position) + extent.offset, payload.data(), payload.size());
  }
  incoming->have[packet.piece] = true;
  ++incoming->got;
  return finish(*incoming, packet.position);
}

Receipt ReceiveWindow::accept_write(const Immediate& immediate, std::size_t rail) {
  if (shape_.write_from == 0 || immediate.piece >= shape_.max_pieces()) return {Receipt::Kind::unexpected};
  const std::uint64_t ahead =
      (immediate.position + kImmediatePositions - released_ % kImmediatePositions) % kImmediatePositions;
  Incoming* const incoming = incoming_for(released_ + ahead);
  const bool known = incoming != nullptr && incoming->pieces != 0;
  if (known && (!incoming->announced || immediate.piece >= incoming->pieces)) return {Receipt::Kind::unexpected};
  ++arrivals_[rail];
  if (incoming == nullptr || incoming->have[immediate.piece]) return {};  // a duplicate
  incoming->have[immediate.piece] = true;
  ++incoming->got;
  return finish(*incoming, released_ + ahead);
}

Receipt ReceiveWindow::finish(Incoming& incoming, std::uint64_t position) {
  Receipt receipt{Receipt::Kind::piece, incoming.held != nullptr};
  receipt.position = position;
  if (incoming.pieces == 0 || incoming.got != incoming.pieces) return receipt;
  if (incoming.held == nullptr) incoming.data = {slot_memory(position), incoming.tile.size_bytes};
  if (incoming.has_checksum && !is_sound(incoming, position)) {
    const std::uint32_t damaged = incoming.damaged + 1;
    incoming = {};
    incoming.damaged = damaged;
    ++damaged_;
    receipt.kind = Receipt::Kind::damaged;
    receipt.holds_receive = false;
    receipt.damaged = damaged;
    return receipt;
  }
  incoming.complete = true;
  receipt.kind = Receipt::Kind::tile;
  receipt.is_next = position == arrived_;
  if (receipt.is_next) {
    while (arrived_ - released_ < shape_.window && incoming_[arrived_ % shape_.window].complete) ++arrived_;
  }
  // The sender uses these acknowledgements to share the load among rails.
  receipt.report_due = shape_.several_rails() && position + 1 >= reported_arrived_ + shape_.tiles_per_report();
  return receipt;
}

// A card may write a payload a second time, and that write may be damaged. So the window shows the copy that was checked.
bool ReceiveWindow::is_sound(Incoming& incoming, std::uint64_t position) {
  if (!incoming.announced) return crc32c(incoming.data) == incoming.checksum;
  std::byte* const copy = checked_.data() + position % shape_.window * shape_.slot_bytes();
  const std::span<const std::byte> written = std::exchange(incoming.data, {copy, incoming.data.size()});
  return copy_with_crc32c(copy, written) == incoming.checksum;
}

const Arrival* ReceiveWindow::peek() noexcept {
  if (arrived_ == released_) return nullptr;
  const Incoming& front = incoming_[released_ % shape_.window];
  if (shown_ <= released_) {
    arrival_ = {front.tile, front.data};
    shown_ = released_ + 1;
  }
  return &arrival_;
}

Receive* ReceiveWindow::release() noexcept {
  assert(arrived_ > released_);
  Incoming& incoming = incoming_[released_ % shape_.window];
  Receive* const held = incoming.held;
  incoming = {};
  ++released_;
  return held;
}

void ReceiveWindow::acknowledge(Packet& packet) noexcept {
  packet.released = released_;
  packet.arrived = arrived_;
  reported_released_ = released_;
  reported_arrived_ = arrived_;
  if (!shape_.several_rails()) return;
  packet.arrivals = arrivals_;
  for (std::uint64_t i = 0; i + 1 + arrived_ < released_ + shape_.window; ++i) {
    if (incoming_[(arrived_ + 1 + i) % shape_.window].complete) packet.arrived_after |= std::uint64_t{1} << i;
  }
}

}  // namespace shoal::rails
