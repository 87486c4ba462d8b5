// The last wait of a link: before this rank leaves, its peer acknowledges the tiles that the caller counts on.
#pragma once

#include <chrono>
#include <cstdint>

#include "transports/tcp/acknowledger.h"
#include "transports/tcp/control_channel.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp {

/// Without it, what is lost in the last moment could not be retransmitted. Tiles of calls that have failed, or have not
/// ended, do not count. Thread rule: that of the link.
class LinkFlush {
 public:
  using Clock = std::chrono::steady_clock;

  LinkFlush(LinkSockets& sockets, ControlChannel& control, Acknowledger& acknowledger, const SendWindow& window)
      : sockets_(sockets), control_(control), acknowledger_(acknowledger), window_(window) {}

  /// Acknowledges what has arrived. Requests the same of the peer where it has not acknowledged all tiles that count.
  void start();
  /// The request has been sent and the flush has not ended.
  [[nodiscard]] bool is_requested() const noexcept { return requested_; }
  /// The acknowledgement has not arrived, but still may: bytes are in flight or lost, or the peer has not had time to read.
  [[nodiscard]] bool is_pending(Clock::time_point now) noexcept;
  /// Waits no longer.
  void end() noexcept;
  /// The calls that the tiles taken so far belong to have failed.
  void excuse_tiles() noexcept { excused_ = window_.taken(); }

 private:
  // How long to wait for the peer's acknowledgement once the data is in its kernel. A peer that waits for the data may need
  // this long to get a core where ranks outnumber cores (50 ms: lost a damaged tile in 1 of 320 cases on a core with six
  // others).
  static constexpr std::chrono::milliseconds kReadTimeout{200};

  [[nodiscard]] bool is_data_in_flight() const noexcept;

  LinkSockets& sockets_;
  ControlChannel& control_;
  Acknowledger& acknowledger_;
  const SendWindow& window_;
  bool requested_ = false;
  Clock::time_point in_peer_kernel_since_{};
  std::uint64_t excused_ = 0;  // some tiles below this number belong to calls that have failed
};

}  // namespace shoal::tcp
