// RailsPeer: sending tiles, piece by piece.
#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "transports/common/checksum.h"
#include "transports/rails/hub.h"
#include "transports/rails/rails_peer.h"

namespace shoal::rails {
namespace {

// How long a sender that aborts waits for rails that still read lent memory, before it closes them.
constexpr std::chrono::milliseconds kGivingUpTime{200};

}  // namespace

std::uint32_t RailsPeer::pieces_of(std::size_t bytes) const noexcept {
  std::size_t alive = 0;
  for (std::size_t r = 0; r < shape_.rails; ++r) alive += rails_[r].lost ? 0 : 1;
  return static_cast<std::uint32_t>(shape_.pieces(bytes, alive));
}

// Whether any memory may be lent: if the sender aborts, the rail can be redirected to a copy.
bool RailsPeer::may_lend_any() const noexcept {
  return pidfd >= 0 && !several_rails() && hub_.rail(0)->redirects(addresses[0]);
}

// Prepares zero-copy. False where that is not possible: then the tile is copied.
bool RailsPeer::register_lent(Outgoing& out, std::span<const std::byte> data) {
  if (!hub_.worth_lending(data)) return false;
  out.may_redirect = may_lend_any();
  if (!hub_.in_lasting_memory(data)) return out.may_redirect;
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    const Rail* const rail = hub_.rail(r);
    if (rail != nullptr && on_this_host && rail->traits().local_peers_read) {
      unregister_lent(out);
      return false;
    }
    RegistrationCache* const cache = rail == nullptr ? nullptr : hub_.registrations(r);
    if (cache == nullptr) continue;
    out.entries[r] = cache->acquire(data.data(), data.size(), hub_.lasting_changes());
    if (out.entries[r] != nullptr) continue;
    unregister_lent(out);
    return false;
  }
  return true;
}

void RailsPeer::unregister_lent(Outgoing& out) {
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    RegistrationCache::Entry* const entry = std::exchange(out.entries[r], nullptr);
    if (entry != nullptr && hub_.rail(r) != nullptr) hub_.registrations(r)->release(*entry);
  }
  out.lent = nullptr;
  out.may_redirect = false;
}

bool RailsPeer::take(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  assert(header.size_bytes == data.size() && data.size() <= shape_.tile_bytes);
  if (!status_.ok() || !ending_.empty() || leaving_) return false;
  const std::size_t slot = taken_ % shape_.window;
  Outgoing& out = out_[slot];
  // The second condition: a card may still read, or write a second time, a tile that the peer has released already.
  if (taken_ - peer_released_ == shape_.window || out.unfinished != 0) {
    refused_ = true;
    return false;
  }
  // An operation that failed may still arrive. So nothing new is written until the peer has removed its slots from the lost
  // rail.
  const bool by_write = shape_.is_written(data.size());
  if (by_write && (rails_lost_ & ~peer_rails_lost_) != 0) {
    refused_ = true;
    return false;
  }
  unregister_lent(out);
  out.has_checksum = hub_.uses_checksums();
  if (out.has_checksum) {  // the copy serves retransmissions
    out.checksum = copy_with_crc32c(payload_of(slot), data);
  } else if (lend && register_lent(out, data)) {
    out.lent = data.data();
  } else if (!data.empty()) {
    std::memcpy(payload_of(slot), data.data(), data.size());
  }
  out.tile = header;
  out.position = taken_;
  out.by_write = by_write;
  out.pieces = pieces_of(data.size());
  out.arrived = false;
  ++taken_;
  if (out.by_write) queue(part_of(slot, parts_per_slot_ - 1));
  for (std::uint32_t i = 0; i < out.pieces; ++i) queue(part_of(slot, i));
  if (!pump()) hub_.want_pump(*this);
  return true;
}

// From now on the tile's parts are sent from a copy. Parts in flight continue from the copy where the rail can be redirected.
void RailsPeer::leave_lent(std::size_t slot) {
  Outgoing& out = out_[slot];
  std::memcpy(payload_of(slot), std::exchange(out.lent, nullptr), out.tile.size_bytes);
  bool read = false;
  for (std::uint32_t i = 0; i < out.pieces; ++i) {
    Part& part = part_of(slot, i);
    if (!part.in_flight) continue;
    const std::size_t offset = piece_extent(out.tile.size_bytes, out.pieces, i).offset;
    if (out.may_redirect) hub_.rail(part.rail)->redirect(part, payload_of(slot) + offset);
    part.lent = !out.may_redirect;
    read |= part.lent;
  }
  if (!read) unregister_lent(out);
}

// A peer that has died or left shows no caller what still arrives there.
bool RailsPeer::is_read(const Part& part) const noexcept {
  return part.in_flight && part.lent && !process_ended_ && !goodbye_at_;
}

// A rail that goes on reading lent memory may send its later contents, and the peer would take these for the tile. Such a
// rail has kGivingUpTime to complete, and is then closed. Only closing ends the reads for certain, although it closes the
// rail for all peers. On other rails the tile is sent from the copy.
void RailsPeer::keep_copies() {
  for (std::uint64_t p = sent_; p < taken_; ++p) {
    if (out_[p % shape_.window].lent != nullptr) leave_lent(p % shape_.window);
  }
  count_sent();
  const auto read = [this](std::size_t rail) {
    return std::any_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.rail == rail && is_read(part); });
  };
  const auto any_read = [this] {
    return std::any_of(parts_.begin(), parts_.end(), [this](const Part& p) { return is_read(p); });
  };
  if (!any_read()) return;
  hub_.progress_until([&] { return !any_read(); }, kGivingUpTime);
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (read(r)) hub_.close_rail(r, fmt::format("this rank closed it, because rank {} did not take lent tiles in time", peer_));
  }
}

// A rail that is not measured counts as being as fast as the best one.
double RailsPeer::best_speed() const noexcept {
  double best = 0;
  for (std::size_t r = 0; r < shape_.rails; ++r) best = std::max(best, rails_[r].load.last_bytes_per_us());
  return best > 0 ? best : 1;
}

int RailsPeer::choose_rail(std::size_t bytes, std::uint32_t refused) const noexcept {
  int best = -1;
  double least = 0;
  const double otherwise = best_speed();
  for (std::size_t r = 0; r < shape_.rails; ++r) {
    if (rails_[r].lost || hub_.rail(r) == nullptr || (refused >> r & 1) != 0) continue;
    const double time = rails_[r].load.arrival_us(bytes, otherwise);
    if (best >= 0 && time >= least) continue;
    best = static_cast<int>(r);
    least = time;
  }
  return best;
}

Packet RailsPeer::front(PacketKind kind) noexcept {
  Packet packet;
  packet.kind = kind;
  packet.link = peer_index;
  packet.token = key_out.token;
  packet.released = released_;
  packet.arrived = arrived_;
  if (several_rails()) {
    packet.arrivals = come_;
    packet.sent_us = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(hub_.now().time_since_epoch()).count());
    for (std::uint64_t i = 0; i + 1 + arrived_ < released_ + shape_.window; ++i) {
      if (in_[(arrived_ + 1 + i) % shape_.window].complete) packet.arrived_after |= std::uint64_t{1} << i;
    }
  }
  told_released_ = released_;
  told_arrived_ = arrived_;
  return packet;
}

int RailsPeer::post(Part& part, std::size_t rail) {
  Outgoing& out = out_[part.slot];
  Rail& on = *hub_.rail(rail);
  void* const descriptor = outbox_.descriptor(rail);
  const std::byte* const payload = out.lent != nullptr ? out.lent : payload_of(part.slot);
  const bool registered = out.lent != nullptr && out.entries[rail] != nullptr;
  void* const payload_descriptor = registered ? out.entries[rail]->registration.descriptor : descriptor;
  const Extent extent = piece_extent(out.tile.size_bytes, out.pieces, part.announces ? 0 : part.piece);
  const std::size_t bytes = part.announces ? 0 : extent.bytes;
  int result = 0;
  if (out.by_write && !part.announces) {
    const Immediate mark{peer_index, static_cast<std::uint16_t>(out.position % kImmediatePositions),
                         static_cast<std::uint8_t>(part.piece)};
    const std::uint64_t address = peer_slots[rail].base + part.slot * slot_stride_ + extent.offset;
    result = on.post_write(part, addresses[rail], {payload + extent.offset, bytes, payload_descriptor}, address,
                           peer_slots[rail].key, to_bits(mark));
  } else {
    Packet packet = front(part.announces ? PacketKind::announce : PacketKind::data);
    packet.position = out.position;
    packet.tile = out.tile;
    packet.piece = part.announces ? 0 : part.piece;
    packet.pieces = out.pieces;
    packet.has_checksum = out.has_checksum;
    packet.checksum = out.checksum;
    std::byte* const header = header_of(part.slot, part.piece);
    encode(packet, key_out, std::span<std::byte, kPacketBytes>(header, kPacketBytes));
    if (bytes == 0 || (out.pieces == 1 && out.lent == nullptr)) {  // the header lies in front of the payload
      const Piece whole{header, kPacketBytes + bytes, descriptor};
      result = on.post_send(part, addresses[rail], {&whole, 1});
    } else {
      const std::array<Piece, 2> both{Piece{header, kPacketBytes, descriptor},
                                      Piece{payload + extent.offset, bytes, payload_descriptor, out.may_redirect}};
      result = on.post_send(part, addresses[rail], both);
    }
  }
  if (result != 0) return result;
  part.rail = static_cast<std::uint8_t>(rail);
  part.in_flight = true;
  part.again = false;
  part.lent = out.lent != nullptr && !part.announces;
  if (several_rails()) {
    RailState& state = rails_[rail];
    if (state.load.bytes() == 0 && state.in_flight == 0) state.waits_since = hub_.now();
    ++state.in_flight;
    state.load.post(static_cast<std::uint32_t>(bytes + kPacketBytes), hub_.now());
  }
  return 0;
}

bool RailsPeer::pump() {
  std::uint32_t refused = 0;
  while (!queue_.empty() && status_.ok() && ending_.empty()) {
    Part& part = queue_.front();
    const int rail = choose_rail(part.announces ? 0 : out_[part.slot].tile.size_bytes / out_[part.slot].pieces, refused);
    if (rail < 0) return false;
    const int result = post(part, static_cast<std::size_t>(rail));
    if (result == kAgain) {
      refused |= 1U << rail;
    } else if (result != 0) {
      Completion failed;
      failed.error = -result;
      lose_rail(static_cast<std::size_t>(rail), hub_.rail(static_cast<std::size_t>(rail))->describe(failed));
    } else {
      queue_.pop();
    }
  }
  // A control record reports releases only where no tile that was sent since has reported them.
  if ((word_due_ || owes_release()) && status_.ok()) return post_word() != kAgain;
  return true;
}

void RailsPeer::queue(Part& part) {
  ++out_[part.slot].unfinished;
  queue_.push(part);
}

void RailsPeer::finish_part(Part& part) {
  part.in_flight = false;
  Outgoing& out = out_[part.slot];
  if (--out.unfinished == 0 && refused_) hub_.note_progress();
  count_sent();
}

void RailsPeer::count_sent() {
  while (sent_ < taken_) {
    Outgoing& out = out_[sent_ % shape_.window];
    if (out.unfinished != 0) return;
    // A lent tile may have to be retransmitted on another rail until it has arrived.
    if (out.lent != nullptr && several_rails() && !out.arrived) return;
    unregister_lent(out);
    ++sent_;
    hub_.note_progress();
  }
}

void RailsPeer::drop_queue() {
  while (!queue_.empty()) {
    Part& part = queue_.front();
    queue_.pop();
    // Does not count as sent: the part has not left.
    --out_[part.slot].unfinished;
  }
}

void RailsPeer::on_sent(Part& part, const Completion& completion) {
  part.in_flight = false;
  if (completion.error != 0) want_word();  // the releases that its packet reported may not have arrived
  if (several_rails()) {
    --rails_[part.rail].in_flight;
    rails_[part.rail].waits_since = hub_.now();
  }
  const Outgoing& out = out_[part.slot];
  const std::size_t rail = part.rail;
  // A part that left on a rail lost since then may have reached an end that the peer had closed.
  const bool may_be_gone = completion.error != 0 || (several_rails() && rails_[rail].lost);
  if (!(may_be_gone || part.again) || out.arrived || out.position < peer_released_) return finish_part(part);
  if (status_.ok() && ending_.empty()) {
    queue_.push(part);
    if (completion.error != 0 && !rails_[rail].lost)
      lose_rail(rail, hub_.rail(rail) != nullptr ? hub_.rail(rail)->describe(completion) : "the rail is closed");
    hub_.want_pump(*this);
  } else {
    --out_[part.slot].unfinished;
  }
}

}  // namespace shoal::rails
