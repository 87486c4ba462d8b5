// When a link acknowledges what it has received.
#pragma once

#include <cstddef>

#include "transports/tcp/control_channel.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp {

/// Acknowledges rarely, but before the sender runs out of memory or of numbers for its tiles. Thread rule: that of the link.
class Acknowledger {
 public:
  Acknowledger(LinkSockets& sockets, ControlChannel& control) : sockets_(sockets), control_(control) {}

  /// `window_bytes`: the send memory of the peer, which is as large as that of this end.
  void set_window(std::size_t window_bytes) noexcept { due_from_bytes_ = window_bytes / (sockets_.shape().rails ? 4 : 2); }
  /// A tile has arrived whole.
  void on_tile(std::size_t frame_bytes) {
    bytes_ += frame_bytes;
    if (bytes_ >= due_from_bytes_ || ++tiles_ >= SendWindow::kTiles / 2) send();
  }
  /// From now on each tile is acknowledged at once: the peer waits for that before it leaves.
  void acknowledge_each() {
    due_from_bytes_ = 0;
    send();
  }
  /// Acknowledges all tiles that have arrived.
  void send();
  /// What was sent before may be lost: the next send() repeats it.
  void repeat_all() noexcept;

 private:
  LinkSockets& sockets_;
  ControlChannel& control_;
  std::size_t due_from_bytes_ = 0;
  std::size_t bytes_ = 0;  // received, not acknowledged yet
  std::size_t tiles_ = 0;
};

}  // namespace shoal::tcp
