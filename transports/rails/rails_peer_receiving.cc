// RailsPeer: packets and writes that arrive, and the tiles that they make up.
#include <algorithm>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "transports/common/checksum.h"
#include "transports/rails/hub.h"
#include "transports/rails/rails_peer.h"

namespace shoal::rails {
namespace {

constexpr std::uint64_t kMostMarks = 64;  // bits of arrived_after; later tiles may lie beyond them, as a packet may be old
constexpr std::uint32_t kMostWrong = 16;  // a tile that is damaged this often in a row will not arrive intact

}  // namespace

void RailsPeer::take_acknowledgements(const Packet& packet, std::size_t rail) {
  if (packet.released > taken_ || packet.arrived > taken_) return;  // invalid
  peer_arrived_ = std::max(peer_arrived_, packet.arrived);
  answered_leaving_ |= leaving_;
  if (several_rails()) {
    const Clock::time_point now = hub_.now();
    rails_[rail].heard = now;
    last_rail_ = rail;
    for (std::size_t r = 0; r < shape_.rails; ++r) {
      if (!rails_[r].lost && rails_[r].load.come(packet.arrivals[r], packet.sent_us, now)) rails_[r].waits_since = now;
    }
    for (std::uint64_t p = peer_released_; p < taken_; ++p) {
      const bool come = p < packet.released || p < packet.arrived ||
                        (p > packet.arrived && p - packet.arrived <= kMostMarks &&
                         (packet.arrived_after >> (p - packet.arrived - 1) & 1) != 0);
      if (come) out_[p % shape_.window].arrived = true;
    }
    count_sent();
  }
  if (packet.released <= peer_released_) return;
  peer_released_ = packet.released;
  if (std::exchange(refused_, false)) hub_.note_progress();
}

RailsPeer::Incoming* RailsPeer::incoming_for(std::uint64_t position) noexcept {
  if (position < released_ || position - released_ >= shape_.window) return nullptr;
  Incoming& incoming = in_[position % shape_.window];
  return incoming.complete ? nullptr : &incoming;  // a duplicate
}

void RailsPeer::finish_incoming(Incoming& incoming, std::uint64_t position) {
  if (!ending_.empty()) ending_since_ = hub_.now();
  const bool all = incoming.pieces != 0 && incoming.got == incoming.pieces;
  if (!all) return;
  const std::size_t slot = position % shape_.window;
  if (incoming.held == nullptr) incoming.data = {slot_memory(slot), incoming.tile.size_bytes};
  if (incoming.has_checksum && !is_sound(incoming, slot)) return ask_again(incoming, position);
  incoming.complete = true;
  if (position == arrived_) {
    while (arrived_ - released_ < shape_.window && in_[arrived_ % shape_.window].complete) ++arrived_;
    hub_.note_progress();
  }
  // The sender uses these acknowledgements to share the load among rails.
  if (several_rails() && position + 1 >= told_arrived_ + std::max<std::size_t>(1, shape_.window / 4)) want_word();
  end_if_all_came(false);
}

// A card may write a payload a second time, and that write may be damaged. So the link shows the copy that was checked.
bool RailsPeer::is_sound(Incoming& incoming, std::size_t slot) {
  if (!incoming.announced) return crc32c(incoming.data) == incoming.checksum;
  std::byte* const copy = checked_.data() + slot * slot_stride_;
  const std::span<const std::byte> written = std::exchange(incoming.data, {copy, incoming.data.size()});
  return copy_with_crc32c(copy, written) == incoming.checksum;
}

// Requests a damaged tile again: it counts as not arrived.
void RailsPeer::ask_again(Incoming& incoming, std::uint64_t position) {
  const std::uint32_t wrong = incoming.wrong + 1;
  forget(incoming);
  incoming.wrong = wrong;
  if (wrong == kMostWrong) {
    return fail({StatusCode::peer_failed,
                 fmt::format("rank {} sent tile {} with a wrong checksum, {} times in a row", peer_, position, wrong)});
  }
  if (!std::exchange(said_damage_, true)) {
    fmt::print(stderr, "shoal: {}: a tile from rank {} arrived with a wrong checksum and is retransmitted (reported once)\n",
               hub_.name(), peer_);
  }
  slots_to_ask_ |= std::uint64_t{1} << position % shape_.window;
  want_word();
}

// The peer has left. It may wait for the acknowledgement that no tile is requested again.
void RailsPeer::end_if_all_came(bool peer_knows) {
  if (!goodbye_at_ || arrived_ < *goodbye_at_) return;
  if (!confirms_end() || peer_knows) {
    fail({StatusCode::peer_failed, ending_});
  } else {
    want_word();
  }
}

bool RailsPeer::on_packet(const Packet& packet, Receive& receive, std::span<const std::byte> payload) {
  if (!status_.ok()) return false;
  take_acknowledgements(packet, receive.rail);
  switch (packet.kind) {
    case PacketKind::note:
      return false;
    case PacketKind::probe:
      answer_on_ = receive.rail;
      want_word();
      return false;
    case PacketKind::rail_lost:
      if (packet.position >= shape_.rails) return false;
      peer_rails_lost_ |= 1U << packet.position;
      if (std::exchange(refused_, false)) hub_.note_progress();
      lose_rail(packet.position, "the peer has lost it");
      return false;
    case PacketKind::close_notice:
      goodbye_at_ = packet.position;
      begin_end(fmt::format("rank {} closed the connection", peer_));
      end_if_all_came(false);
      return false;
    case PacketKind::retransmit:
      send_again(packet.position);
      return false;
    case PacketKind::data:
    case PacketKind::announce:
      break;
  }
  const bool announces = packet.kind == PacketKind::announce;
  if (announces != shape_.is_written(packet.tile.size_bytes)) {  // both ends have agreed on which tiles are written
    count_refusal(hub_.name(), announces ? "a tile that is not written was announced" : "a tile that is written was sent");
    return false;
  }
  ++come_[receive.rail];
  Incoming* incoming = incoming_for(packet.position);
  if (incoming == nullptr) {
    if (several_rails()) want_word();  // the sender does not know that the tile has arrived
    return false;
  }
  if (incoming->pieces == 0) {
    incoming->pieces = packet.pieces;
    incoming->tile = packet.tile;
    incoming->has_checksum = packet.has_checksum;
    incoming->checksum = packet.checksum;
    // Drops the bits of pieces that the tile does not have.
    incoming->have &= ~std::bitset<kMaxPieces>{} >> (kMaxPieces - (announces ? packet.pieces : 0));
    incoming->got = static_cast<std::uint32_t>(incoming->have.count());
  }
  const bool fits = incoming->pieces == packet.pieces && incoming->tile == packet.tile;
  bool held = false;
  if (announces) {
    if (!fits) return false;
    incoming->announced = true;
  } else {
    const Extent extent = piece_extent(packet.tile.size_bytes, packet.pieces, packet.piece);
    if (!fits || incoming->have[packet.piece] || payload.size() != extent.bytes) return false;
    if (packet.pieces == 1) {
      incoming->held = &receive;
      incoming->data = payload;
      held = true;
    } else {
      if (slots_.size() == 0) return false;
      std::memcpy(slot_memory(packet.position % shape_.window) + extent.offset, payload.data(), payload.size());
    }
    incoming->have[packet.piece] = true;
    ++incoming->got;
  }
  finish_incoming(*incoming, packet.position);
  return held;
}

// Only the key of the slots protects a write: its mark is not authenticated. A write may arrive before the announcement.
bool RailsPeer::on_written(const Immediate& immediate, std::size_t rail) {
  if (!status_.ok()) return true;
  if (shape_.write_from == 0 || immediate.piece >= shape_.max_pieces()) return false;
  const std::uint64_t ahead =
      (immediate.position + kImmediatePositions - released_ % kImmediatePositions) % kImmediatePositions;
  Incoming* incoming = incoming_for(released_ + ahead);
  const bool known = incoming != nullptr && incoming->pieces != 0;
  if (known && (!incoming->announced || immediate.piece >= incoming->pieces)) return false;
  ++come_[rail];
  if (incoming == nullptr || incoming->have[immediate.piece]) return true;  // a duplicate
  incoming->have[immediate.piece] = true;
  ++incoming->got;
  finish_incoming(*incoming, released_ + ahead);
  return true;
}

const Arrival* RailsPeer::peek() noexcept {
  if (arrived_ == released_) return nullptr;
  const Incoming& front = in_[released_ % shape_.window];
  if (shown_ <= released_) {
    arrival_ = {front.tile, front.data};
    shown_ = released_ + 1;
  }
  return &arrival_;
}

void RailsPeer::forget(Incoming& incoming) noexcept {
  if (incoming.held != nullptr) hub_.repost(*incoming.held);
  incoming = {};
}

void RailsPeer::release() noexcept {
  assert(arrived_ > released_);
  forget(in_[released_ % shape_.window]);
  ++released_;
  if (owes_release()) hub_.want_pump(*this);
}

}  // namespace shoal::rails
