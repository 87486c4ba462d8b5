// When a link acknowledges what it has received.
#pragma once

#include <cstddef>

#include "transports/tcp/control_channel.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp {

/// Acknowledges rarely, but before the sender runs out of memory or of numbers for its tiles, and when nothing more arrives.
/// Thread rule: that of the link.
class Acknowledger {
 public:
  Acknowledger(LinkSockets& sockets, ControlChannel& control) : sockets_(sockets), control_(control) {}

  /// `window_bytes`: the send memory of the peer, which is as large as that of this end.
  void set_window(std::size_t window_bytes) noexcept {
    window_bytes_ = window_bytes;
    due_from_bytes_ = usual_bytes();
  }
  /// While this rank has more memory in its rings than its limit: acknowledges sooner, so that the peer's copies become free.
  /// Mostly the peer has as much traffic and the same limit, and does this for the copies of this rank.
  void save_memory(bool saves) noexcept { acknowledge_from(saves ? window_bytes_ / kSavingShare : usual_bytes()); }
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
  /// Called about once a second: acknowledges all tiles, if none has arrived since the last call. Otherwise the peer would keep
  /// its copies until there is new traffic.
  void send_rest();
  /// Acknowledges all tiles that have arrived.
  void send();
  /// What was sent before may be lost: the next send() repeats it.
  void repeat_all() noexcept;

 private:
  static constexpr std::size_t kSavingShare = 16;  // of the window

  [[nodiscard]] std::size_t usual_bytes() const noexcept { return window_bytes_ / (sockets_.shape().rails ? 4 : 2); }
  // No effect after acknowledge_each().
  void acknowledge_from(std::size_t bytes) noexcept {
    if (due_from_bytes_ != 0) due_from_bytes_ = bytes;
  }

  LinkSockets& sockets_;
  ControlChannel& control_;
  std::size_t window_bytes_ = 0;
  std::size_t due_from_bytes_ = 0;
  std::size_t bytes_ = 0;  // received, not acknowledged yet
  std::size_t tiles_ = 0;
  std::size_t bytes_at_last_call_ = 0;  // of send_rest()
};

}  // namespace shoal::tcp
