// The tiles that a link over rails has taken and the peer has not released yet, and the operations that carry them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "transports/rails/link_shape.h"
#include "transports/rails/posted.h"
#include "transports/rails/rail_selector.h"
#include "transports/rails/registrations.h"
#include "transports/rails/wire.h"
#include "transports/transport.h"

namespace shoal::rails {

/// A payload that is sent from the caller's memory.
struct Loan {
  const std::byte* data = nullptr;  ///< null: the payload is in the link's own memory
  bool may_redirect = false;        ///< the rail can redirect the payload to a copy
  std::array<RegistrationCache::Entry*, kMaxRails> entries{};
};

/// A tile of the window.
struct OutgoingTile {
  TileHeader header;
  std::uint64_t position = 0;
  std::uint32_t pieces = 1;
  std::uint32_t unfinished = 0;  ///< parts that are queued or in flight
  bool by_write = false;
  bool has_checksum = false;
  std::uint32_t checksum = 0;
  bool arrived = true;  ///< the peer has reported it
  Loan loan;
};

/// Parts that wait for room on a rail; each part is in it at most once, so it never grows.
class PartQueue {
 public:
  void reserve(std::size_t parts) { ring_.resize(parts + 1); }
  [[nodiscard]] bool empty() const noexcept { return head_ == tail_; }
  [[nodiscard]] Part& front() const noexcept { return *ring_[head_]; }
  void push(Part& part) noexcept {
    part.queued = true;
    ring_[tail_] = &part;
    tail_ = (tail_ + 1) % ring_.size();
  }
  void pop() noexcept {
    ring_[head_]->queued = false;
    head_ = (head_ + 1) % ring_.size();
  }

 private:
  std::vector<Part*> ring_;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
};

/// Keeps the tiles in the order of sending, with a copy of each payload that is not lent, until the peer has released them,
/// because a card may read or write a payload once more. Nothing is allocated after prepare(). Thread rule: that of the
/// transport.
class SendWindow {
 public:
  explicit SendWindow(const LinkShape& shape)
      : shape_(shape),
        parts_per_slot_(shape.parts_per_tile()),
        headers_bytes_(round_up(parts_per_slot_ * kPacketBytes)),
        stride_(headers_bytes_ + shape.slot_bytes()) {}

  /// Bytes that prepare() needs for headers and payloads.
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return shape_.window * stride_; }
  /// `memory` starts on a cache line and outlives this. Completions of the parts name `owner`.
  void prepare(std::byte* memory, RailsPeer* owner);

  // Tiles -------------------------------------------------------------------------------------------------------------------
  /// False where the peer has not released the oldest tile, or where a card may still read it, or write it a second time.
  [[nodiscard]] bool has_room() const noexcept { return taken_ - released_ != shape_.window && next().unfinished == 0; }
  /// The slot of the tile that push() takes next; the caller sets all of it that push() does not.
  [[nodiscard]] OutgoingTile& next() noexcept { return tiles_[taken_ % shape_.window]; }
  [[nodiscard]] const OutgoingTile& next() const noexcept { return tiles_[taken_ % shape_.window]; }
  /// Takes next(): numbers it and queues its parts.
  void push() noexcept;
  [[nodiscard]] OutgoingTile& tile(std::uint64_t position) noexcept { return tiles_[position % shape_.window]; }
  [[nodiscard]] OutgoingTile& tile_of(const Part& part) noexcept { return tiles_[part.slot]; }
  [[nodiscard]] std::byte* payload(std::uint64_t position) const noexcept {
    return memory_ + position % shape_.window * stride_ + headers_bytes_;
  }
  /// Room for the packet header of that part: the one of piece 0 ends where the payload begins.
  [[nodiscard]] std::byte* header(const Part& part) const noexcept {
    return payload(part.slot) - (part.piece + 1) * kPacketBytes;
  }
  /// Bytes of the payload that the part carries.
  [[nodiscard]] Extent extent(const Part& part) const noexcept {
    const OutgoingTile& tile = tiles_[part.slot];
    if (part.announces) return {};
    return piece_extent(tile.header.size_bytes, tile.pieces, part.piece);
  }

  /// Calls `freed` for each further tile whose source memory is no longer needed, in the order of sending.
  template <typename Freed>
  void count_sent(Freed freed) {
    for (; sent_ < taken_; ++sent_) {
      OutgoingTile& tile = this->tile(sent_);
      if (tile.unfinished != 0) return;
      // A lent tile may have to be retransmitted on another rail until it has arrived.
      if (tile.loan.data != nullptr && shape_.several_rails() && !tile.arrived) return;
      freed(tile);
    }
  }

  // Parts -------------------------------------------------------------------------------------------------------------------
  [[nodiscard]] bool has_queued() const noexcept { return !queue_.empty(); }
  [[nodiscard]] Part& front() const noexcept { return queue_.front(); }
  void pop_front() noexcept { queue_.pop(); }
  /// Drops the queue. Its tiles do not count as sent.
  void drop_queue() noexcept;
  /// Queues a completed part once more; its tile stays unfinished.
  void requeue(Part& part) noexcept { queue_.push(part); }
  /// Queues the parts that left on that rail and are not known to have arrived.
  void resend_from(std::size_t rail) noexcept;
  /// Queues all parts of the tile; those in flight as soon as they have completed. No effect where the tile has arrived.
  void resend(std::uint64_t position) noexcept;
  /// That rail is closed: its operations have ended. Calls `dropped` for each.
  template <typename Dropped>
  void drop_in_flight(std::size_t rail, Dropped dropped) {
    for (Part& part : parts_) {
      if (!part.in_flight || part.rail != rail) continue;
      part.in_flight = false;
      --tiles_[part.slot].unfinished;  // resend_from() counts it again where it has not arrived
      dropped(part);
    }
  }
  /// Calls `each` for the pieces of the tile and, where they are written, for the announcement.
  template <typename Each>
  void for_each_part(std::uint64_t position, Each each) {
    const OutgoingTile& tile = this->tile(position);
    for (std::uint32_t i = 0; i < tile.pieces; ++i) each(part(position, i));
    if (tile.by_write) each(announcement(position));
  }
  template <typename Is>
  [[nodiscard]] bool any_part(Is is) const {
    return std::any_of(parts_.begin(), parts_.end(), is);
  }

  // Acknowledgements --------------------------------------------------------------------------------------------------------
  /// False where the packet acknowledges tiles that were not sent: then nothing is changed.
  bool acknowledge(const Packet& packet) noexcept;
  /// The peer has reported the tile, or has released it.
  [[nodiscard]] bool has_arrived(const OutgoingTile& tile) const noexcept { return tile.arrived || tile.position < released_; }
  /// A caller found no room, and waits.
  void refuse() noexcept { refused_ = true; }
  [[nodiscard]] bool has_refused() const noexcept { return refused_; }
  /// There is room again; true where a caller waits for it.
  bool end_refusal() noexcept { return std::exchange(refused_, false); }

  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }
  [[nodiscard]] std::uint64_t released() const noexcept { return released_; }
  [[nodiscard]] bool all_arrived() const noexcept { return arrived_ == taken_; }
  /// No part is queued or in flight.
  [[nodiscard]] bool is_idle() const noexcept;

 private:
  Part& part(std::uint64_t position, std::size_t i) noexcept { return parts_[position % shape_.window * parts_per_slot_ + i]; }
  Part& announcement(std::uint64_t position) noexcept { return part(position, parts_per_slot_ - 1); }
  void queue(Part& part) noexcept;

  const LinkShape& shape_;
  const std::size_t parts_per_slot_;  // the last part is the announcement
  const std::size_t headers_bytes_;   // of a slot, in front of its payload
  const std::size_t stride_;          // from slot to slot
  std::byte* memory_ = nullptr;
  std::vector<OutgoingTile> tiles_;
  std::vector<Part> parts_;
  PartQueue queue_;
  std::uint64_t taken_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t released_ = 0;  // by the peer
  std::uint64_t arrived_ = 0;   // at the peer, without a gap
  bool refused_ = false;
};

}  // namespace shoal::rails
