#include "transports/rails/sender.h"

#include <array>
#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "transports/common/checksum.h"
#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

// How long a sender that aborts waits for rails that still read lent memory, before it closes them.
constexpr std::chrono::milliseconds kAbortTime{200};

}  // namespace

Sender::Sender(const Context& link) : link_(link), lender_(link.hub, link.shape, link.remote), window_(link.shape) {}

Status Sender::prepare(RailsPeer* owner) {
  memory_ = Memory(window_.memory_bytes() + link_.shape.rails * round_up(kPacketBytes));
  if (memory_.data() == nullptr) {
    return {StatusCode::system_error,
            fmt::format("{}: no memory for the link to rank {}", link_.hub.name(), link_.remote.rank)};
  }
  window_.prepare(memory_.data(), owner);
  return link_.hub.register_memory(memory_, false, true);
}

bool Sender::take(const TileHeader& header, std::span<const std::byte> data, bool lend) {
  assert(header.size_bytes == data.size() && data.size() <= link_.shape.tile_bytes);
  // An operation that failed may still arrive. So nothing new is written until the peer has removed its slots from the lost
  // rail.
  const bool by_write = link_.shape.is_written(data.size());
  if (!window_.has_room() || (by_write && !link_.rails.slots_are_safe())) {
    window_.refuse();
    return false;
  }
  OutgoingTile& tile = window_.next();
  std::byte* const copy = window_.payload(window_.taken());
  lender_.end(tile.loan);
  tile.has_checksum = link_.hub.uses_checksums();
  if (tile.has_checksum) {  // the copy serves retransmissions
    tile.checksum = copy_with_crc32c(copy, data);
  } else if (!(lend && lender_.lend(tile.loan, data)) && !data.empty()) {
    std::memcpy(copy, data.data(), data.size());
  }
  tile.header = header;
  tile.by_write = by_write;
  tile.pieces = static_cast<std::uint32_t>(link_.shape.pieces(data.size(), link_.rails.count_usable()));
  window_.push();
  return true;
}

Packet Sender::packet(PacketKind kind) {
  Packet packet;
  packet.kind = kind;
  packet.link = link_.remote.link;
  packet.token = link_.remote.key_out.token;
  link_.received.acknowledge(packet);
  if (link_.shape.several_rails()) {
    packet.sent_us = static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(link_.hub.now().time_since_epoch()).count());
  }
  return packet;
}

Sender::Post Sender::post_next(RailMask full) {
  Part& part = window_.front();
  const OutgoingTile& tile = window_.tile_of(part);
  const int rail = link_.rails.choose(part.announces ? 0 : tile.header.size_bytes / tile.pieces, full);
  if (rail < 0) return {};
  const int result = post(part, static_cast<std::size_t>(rail));
  if (result == 0) window_.pop_front();
  return {rail, result};
}

int Sender::post(Part& part, std::size_t rail) {
  OutgoingTile& tile = window_.tile_of(part);
  Rail& on = *link_.hub.rail(rail);
  const Loan& loan = tile.loan;
  void* const descriptor = memory_.descriptor(rail);
  const bool registered = loan.data != nullptr && loan.entries[rail] != nullptr;
  const Extent extent = window_.extent(part);
  const Piece payload{(loan.data != nullptr ? loan.data : window_.payload(part.slot)) + extent.offset, extent.bytes,
                      registered ? loan.entries[rail]->registration.descriptor : descriptor, loan.may_redirect};
  int result = 0;
  if (tile.by_write && !part.announces) {
    result = post_write(part, tile, payload, rail);
  } else {
    Packet packet = this->packet(part.announces ? PacketKind::announce : PacketKind::data);
    packet.position = tile.position;
    packet.tile = tile.header;
    packet.piece = part.announces ? 0 : part.piece;
    packet.pieces = tile.pieces;
    packet.has_checksum = tile.has_checksum;
    packet.checksum = tile.checksum;
    std::byte* const header = window_.header(part);
    encode(packet, link_.remote.key_out, std::span<std::byte, kPacketBytes>(header, kPacketBytes));
    if (extent.bytes == 0 || (tile.pieces == 1 && loan.data == nullptr)) {  // the header lies in front of the payload
      const Piece whole{header, kPacketBytes + extent.bytes, descriptor};
      result = on.post_send(part, link_.remote.addresses[rail], {&whole, 1});
    } else {
      const std::array<Piece, 2> both{Piece{header, kPacketBytes, descriptor}, payload};
      result = on.post_send(part, link_.remote.addresses[rail], both);
    }
  }
  if (result != 0) return result;
  part.rail = static_cast<std::uint8_t>(rail);
  part.in_flight = true;
  part.resend = false;
  part.lent = loan.data != nullptr && !part.announces;
  if (link_.shape.several_rails()) {
    RailLoad& load = link_.rails.load(rail);
    const Clock::time_point now = link_.hub.now();
    link_.liveness.on_posted(rail, load.bytes() == 0, now);
    load.post(static_cast<std::uint32_t>(extent.bytes + kPacketBytes), now);
  }
  return 0;
}

int Sender::post_write(Part& part, const OutgoingTile& tile, const Piece& piece, std::size_t rail) {
  const RemoteEnd& remote = link_.remote;
  const Immediate immediate{remote.link, static_cast<std::uint16_t>(tile.position % kImmediatePositions),
                            static_cast<std::uint8_t>(part.piece)};
  const std::uint64_t address = remote.slots[rail].base + part.slot * link_.shape.slot_bytes() + window_.extent(part).offset;
  return link_.hub.rail(rail)->post_write(part, remote.addresses[rail], piece, address, remote.slots[rail].key,
                                          to_bits(immediate));
}

int Sender::post_control(ControlRecord& record, const ControlQueue::Next& next, std::size_t rail) {
  Packet packet = this->packet(next.kind);
  if (next.kind == PacketKind::rail_lost) packet.position = next.number;
  if (next.kind == PacketKind::retransmit) packet.position = link_.received.position_of(next.number);
  if (next.kind == PacketKind::close_notice) packet.position = window_.taken();
  encode(packet, link_.remote.key_out, std::span<std::byte, kPacketBytes>(record.memory, kPacketBytes));
  const Piece piece{record.memory, record.bytes, memory_.descriptor(rail)};
  const int result = link_.hub.rail(rail)->post_send(record, link_.remote.addresses[rail], {&piece, 1});
  if (result == 0 && link_.shape.several_rails()) link_.liveness.on_control_posted(rail, link_.hub.now());
  return result;
}

bool Sender::complete(Part& part, bool may_be_lost) {
  part.in_flight = false;
  if (link_.shape.several_rails()) link_.liveness.on_completed(part.rail, link_.hub.now());
  OutgoingTile& tile = window_.tile_of(part);
  const bool repeats = (may_be_lost || part.resend) && !window_.has_arrived(tile);
  if (repeats && link_.state.is_open()) {
    window_.requeue(part);
    return true;
  }
  --tile.unfinished;
  if (repeats) return false;  // it cannot be repeated: the tile does not count as sent
  if (tile.unfinished == 0 && window_.has_refused()) link_.hub.note_progress();
  count_sent();
  return false;
}

void Sender::count_sent() {
  window_.count_sent([this](OutgoingTile& tile) {
    lender_.end(tile.loan);
    link_.hub.note_progress();
  });
}

bool Sender::acknowledge(const Packet& packet, std::size_t rail) {
  const std::uint64_t released = window_.released();
  if (!window_.acknowledge(packet)) return false;
  if (link_.shape.several_rails()) {
    const Clock::time_point now = link_.hub.now();
    link_.liveness.on_received(rail, now);
    for (std::size_t r = 0; r < link_.shape.rails; ++r) {
      if (link_.rails.is_lost(r)) continue;
      if (link_.rails.load(r).on_report(packet.arrivals[r], packet.sent_us, now)) link_.liveness.on_arrivals(r, now);
    }
    count_sent();
  }
  if (window_.released() > released && window_.end_refusal()) link_.hub.note_progress();
  return true;
}

void Sender::on_rail_closed(std::size_t rail) {
  window_.drop_in_flight(rail, [&](const Part&) {
    if (link_.shape.several_rails()) link_.liveness.on_dropped(rail);
  });
}

void Sender::on_slots_removed() {
  if (window_.end_refusal()) link_.hub.note_progress();
}

// From now on the tile's parts are sent from a copy. Parts in flight continue from the copy where the rail can be redirected.
void Sender::stop_lending(OutgoingTile& tile) {
  std::byte* const copy = window_.payload(tile.position);
  std::memcpy(copy, std::exchange(tile.loan.data, nullptr), tile.header.size_bytes);
  bool read = false;
  window_.for_each_part(tile.position, [&](Part& part) {
    if (!part.in_flight || part.announces) return;
    if (tile.loan.may_redirect) link_.hub.rail(part.rail)->redirect(part, copy + window_.extent(part).offset);
    part.lent = !tile.loan.may_redirect;
    read |= part.lent;
  });
  if (!read) lender_.end(tile.loan);
}

bool Sender::is_read(const Part& part) const noexcept { return part.in_flight && part.lent && !link_.state.peer_is_gone(); }

// A rail that goes on reading lent memory may send its later contents, and the peer would take these for the tile. Such a
// rail has kAbortTime to complete, and is then closed. Only closing ends the reads for certain, although it closes the rail
// for all peers. On other rails the tile is sent from the copy.
void Sender::keep_copies() {
  for (std::uint64_t p = window_.sent(); p < window_.taken(); ++p) {
    if (window_.tile(p).loan.data != nullptr) stop_lending(window_.tile(p));
  }
  count_sent();
  const auto any_read = [this] { return window_.any_part([this](const Part& part) { return is_read(part); }); };
  if (!any_read()) return;
  link_.hub.progress_until([&] { return !any_read(); }, kAbortTime);
  for (std::size_t r = 0; r < link_.shape.rails; ++r) {
    if (!window_.any_part([&](const Part& part) { return part.rail == r && is_read(part); })) continue;
    link_.hub.close_rail(
        r, fmt::format("this rank closed it, because rank {} did not take lent tiles in time", link_.remote.rank));
  }
}

}  // namespace shoal::rails
