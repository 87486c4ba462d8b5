// The sending half of a link over rails: takes tiles, and posts their parts and the control records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <shoal/status.h>

#include "transports/rails/control_queue.h"
#include "transports/rails/lender.h"
#include "transports/rails/link_state.h"
#include "transports/rails/posted.h"
#include "transports/rails/rail_liveness.h"
#include "transports/rails/rail_selector.h"
#include "transports/rails/receive_window.h"
#include "transports/rails/send_window.h"

namespace shoal::rails {

/// Thread rule: that of the transport.
class Sender {
 public:
  /// The parts of the same link that it uses.
  struct Context {
    Hub& hub;
    const LinkShape& shape;
    const RemoteEnd& remote;
    const LinkState& state;
    RailSelector& rails;
    RailLiveness& liveness;
    ReceiveWindow& received;
  };
  /// What became of one post. `result`: of Rail::post_send().
  struct Post {
    int rail = -1;  ///< -1: no rail has room
    int result = 0;
  };

  explicit Sender(const Context& link);
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// Allocates and registers the memory. Errors: system_error.
  Status prepare(RailsPeer* owner);
  /// Memory of headers, payloads and control records.
  [[nodiscard]] Memory& memory() noexcept { return memory_; }
  /// Where the records of the ControlQueue lie in it.
  [[nodiscard]] std::byte* control_memory() const noexcept { return memory_.data() + window_.memory_bytes(); }
  [[nodiscard]] const SendWindow& window() const noexcept { return window_; }

  /// Takes a tile and queues its parts; false where there is no room.
  bool take(const TileHeader& header, std::span<const std::byte> data, bool lend);
  /// Posts the first queued part on a rail that is not in `full`.
  Post post_next(RailMask full);
  int post_control(ControlRecord& record, const ControlQueue::Next& next, std::size_t rail);
  /// The part's operation has completed. `may_be_lost`: its data may not have arrived. True where it is queued once more.
  bool complete(Part& part, bool may_be_lost);
  /// Takes the acknowledgements of a packet that arrived on `rail`; false where they are invalid.
  bool acknowledge(const Packet& packet, std::size_t rail);
  void on_rail_closed(std::size_t rail);
  void resend_from(std::size_t rail) noexcept { window_.resend_from(rail); }
  void resend(std::uint64_t position) noexcept { window_.resend(position); }
  void drop_queue() noexcept { window_.drop_queue(); }
  /// The peer has removed its slots from a lost rail: a refused caller may try again.
  void on_slots_removed();
  /// Link::keep_copies().
  void keep_copies();

  /// Counts the tiles whose source memory is free.
  void count_sent();

 private:
  Packet packet(PacketKind kind);
  int post(Part& part, std::size_t rail);
  int post_write(Part& part, const OutgoingTile& tile, const Piece& piece, std::size_t rail);
  void stop_lending(OutgoingTile& tile);
  [[nodiscard]] bool is_read(const Part& part) const noexcept;

  const Context link_;
  Lender lender_;
  SendWindow window_;
  Memory memory_;
};

}  // namespace shoal::rails
