// RailsPeer: a link over rails, both directions to one peer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <shoal/status.h>

#include "transports/rails/control_queue.h"
#include "transports/rails/handshake.h"
#include "transports/rails/link_shape.h"
#include "transports/rails/link_state.h"
#include "transports/rails/rail_liveness.h"
#include "transports/rails/rail_selector.h"
#include "transports/rails/receive_window.h"
#include "transports/rails/sender.h"

namespace shoal::rails {

class Hub;
using Clock = std::chrono::steady_clock;

/// Passes the events of one peer on to the parts that hold the state of the link: both windows, the rails, the control records
/// and the life of the link. Owned by the Hub, which outlives the operations. Thread rule: that of the transport.
class RailsPeer {
 public:
  RailsPeer(Hub& hub, int rank, const LinkShape& shape);

  /// Allocates and registers the memory. Errors: system_error.
  Status prepare();
  [[nodiscard]] Sender& sender() noexcept { return sender_; }
  [[nodiscard]] ReceiveWindow& received() noexcept { return received_; }

  // Interface of Link -------------------------------------------------------------------------------------------------------
  bool send(const TileHeader& header, std::span<const std::byte> data, bool lend);
  void release() noexcept;
  [[nodiscard]] const Status& status() const noexcept { return state_.status(); }
  /// The caller has destroyed the link: sends the close notice.
  void leave();

  // Events from the Hub -----------------------------------------------------------------------------------------------------
  /// A message of this link; true where the receive is held until the tile is released.
  bool on_packet(const Packet& packet, Receive& receive, std::span<const std::byte> payload);
  /// False where no one-sided write to that tile is expected.
  [[nodiscard]] bool on_written(const Immediate& immediate, std::size_t rail);
  void on_part_sent(Part& part, const Completion& completion);
  void on_control_sent(ControlRecord& record, const Completion& completion);
  /// The rail is closed: its operations in flight have ended.
  void on_rail_closed(std::size_t rail, const std::string& why);
  /// The peer's process has ended. Data that it had sent still arrives.
  void on_process_ended(const std::string& why);
  /// Checks timeouts; true where it must be called again soon.
  bool watch(Clock::time_point now);
  /// Sends what can be sent; false where something is left because a queue was full.
  bool pump();
  void fail(Status status);

  enum class Flush : std::uint8_t {
    done,       ///< all data and the close notice have left, and have been acknowledged where that is necessary
    repairing,  ///< the peer answers, but has not acknowledged all tiles yet
    waiting
  };
  /// How far a link is that this rank leaves.
  [[nodiscard]] Flush flush_state() const noexcept;

  RemoteEnd remote;
  Handshake handshake;
  bool queued_for_pump = false;

 private:
  void on_receipt(const Receipt& receipt);
  void lose_rail(std::size_t rail, const std::string& why);
  void begin_end(std::string why);
  void end_if_all_arrived(bool peer_knows);
  void want_control();
  int post_control();

  Hub& hub_;
  const LinkShape& shape_;
  LinkState state_;
  RailSelector rails_;
  RailLiveness liveness_;
  ReceiveWindow received_;
  Sender sender_;
  ControlQueue control_;
};

}  // namespace shoal::rails
