// The receiving half of a link over rails: order, arrivals, and the credits that the sender gets back.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transports/rails/link_shape.h"
#include "transports/rails/posted.h"
#include "transports/rails/wire.h"
#include "transports/transport.h"

namespace shoal::rails {

/// What a packet of a tile, or a one-sided write, has changed.
struct Receipt {
  enum class Kind : std::uint8_t {
    unexpected,  ///< not what the sender may send: to be counted as refused
    ignored,     ///< changes nothing
    duplicate,   ///< of a tile that is complete: the sender does not know that it has arrived
    piece,       ///< the tile is not complete yet
    damaged,     ///< all pieces are there, with a wrong checksum: the tile counts as not arrived
    tile,        ///< the tile is complete
  };
  Kind kind = Kind::ignored;
  bool holds_receive = false;  ///< the payload stays in the receive until release() returns it
  bool is_next = false;        ///< the tile is the next one in order: peek() shows more than before
  bool report_due = false;     ///< the arrivals are to be reported to the sender
  std::uint32_t damaged = 0;   ///< how often in a row this tile has arrived damaged
  std::uint64_t position = 0;  ///< of the tile
};

/// Puts the pieces of tiles together, in any order, and shows the tiles in the order of sending. Nothing is allocated after
/// prepare(). Thread rule: that of the transport.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(const LinkShape& shape) : shape_(shape) {}

  /// False where there is no memory.
  [[nodiscard]] bool prepare();
  /// Memory into which the peer may write, a slot for each tile of the window. Registered by the caller.
  [[nodiscard]] Memory& slots() noexcept { return slots_; }
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return slots_.size() + checked_.size(); }

  /// A packet of kind `data` or `announce`.
  Receipt accept(const Packet& packet, Receive& receive, std::span<const std::byte> payload);
  /// The peer has written a piece into a slot. Only the key of the slots protects a write: its 32 bits are not authenticated.
  /// A write may arrive before the announcement of its tile.
  Receipt accept_write(const Immediate& immediate, std::size_t rail);

  /// The oldest tile that is complete; null where there is none.
  [[nodiscard]] const Arrival* peek() noexcept;
  /// Releases that tile. Returns the receive that held its payload, which may be posted again; null where a slot held it.
  Receive* release() noexcept;

  /// Fills in the acknowledgements of a packet: they count as reported.
  void acknowledge(Packet& packet) noexcept;
  /// The peer may soon wait for room that has been released already, but not reported.
  [[nodiscard]] bool owes_release() const noexcept { return released_ - reported_released_ >= shape_.tiles_per_report(); }
  /// There is a tile that peek() has not shown.
  [[nodiscard]] bool has_unseen() const noexcept { return arrived_ > released_ && shown_ <= released_; }
  /// Tiles below this number have arrived.
  [[nodiscard]] std::uint64_t arrived() const noexcept { return arrived_; }
  /// Number of damaged arrivals of all tiles.
  [[nodiscard]] std::uint64_t damaged() const noexcept { return damaged_; }
  /// Sequence number of the tile of the window that `slot` is for.
  [[nodiscard]] std::uint64_t position_of(std::size_t slot) const noexcept {
    return released_ + (slot + shape_.window - released_ % shape_.window) % shape_.window;
  }

 private:
  struct Incoming {
    TileHeader tile;
    bool announced = false;
    bool complete = false;
    bool has_checksum = false;
    std::uint32_t checksum = 0;
    std::uint32_t damaged = 0;  ///< number of wrong checksums in a row
    std::uint32_t pieces = 0;   ///< 0: unknown yet
    std::uint32_t got = 0;
    std::bitset<kMaxPieces> have;
    Receive* held = nullptr;
    std::span<const std::byte> data;
  };

  Incoming* incoming_for(std::uint64_t position) noexcept;
  [[nodiscard]] std::byte* slot_memory(std::uint64_t position) const noexcept {
    return slots_.data() + position % shape_.window * shape_.slot_bytes();
  }
  Receipt finish(Incoming& incoming, std::uint64_t position);
  [[nodiscard]] bool is_sound(Incoming& incoming, std::uint64_t position);

  const LinkShape& shape_;
  Memory slots_;
  Memory checked_;  // copies of written tiles with checksums: by slot
  std::vector<Incoming> incoming_;
  std::array<std::uint32_t, kMaxRails> arrivals_{};  // by rail: pieces and announcements
  std::uint64_t released_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t shown_ = 0;
  std::uint64_t reported_released_ = 0;
  std::uint64_t reported_arrived_ = 0;
  std::uint64_t damaged_ = 0;
  Arrival arrival_;
};

}  // namespace shoal::rails
