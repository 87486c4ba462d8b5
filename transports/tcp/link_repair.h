// Connections that are replaced, and hosts that have vanished.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transports/tcp/acknowledger.h"
#include "transports/tcp/control_channel.h"
#include "transports/tcp/link_flush.h"
#include "transports/tcp/link_sockets.h"
#include "transports/tcp/tile_sender.h"

namespace shoal::tcp {

/// Continues the link over a new connection, and looks for peers that are silent. Thread rule: that of the link.
class LinkRepair {
 public:
  LinkRepair(LinkSockets& sockets, TileSender& sender, ControlChannel& control, Acknowledger& acknowledger,
             const LinkFlush& flush)
      : sockets_(sockets), sender_(sender), control_(control), acknowledger_(acknowledger), flush_(flush) {}

  /// A new connection is about to replace that of a socket: gives the old one up. Returns the number below which the socket's
  /// tiles have arrived; empty where the link has ended.
  std::optional<std::uint64_t> give_up(std::size_t socket);
  /// Continues with a new connection. The peer has the socket's tiles below `received`; those behind them are retransmitted.
  void resume(std::size_t socket, Connection connection, std::uint64_t received);

  // Called a few times a second; true where anything changed.

  /// Drops connections to a silent host, or ends the link.
  bool watch_silence();
  /// Ends a closing link where nothing more arrives.
  bool watch_closing();

 private:
  using Clock = LinkStatus::Clock;

  LinkSockets& sockets_;
  TileSender& sender_;
  ControlChannel& control_;
  Acknowledger& acknowledger_;
  const LinkFlush& flush_;
  std::uint64_t arrived_bytes_ = 0;  // while closing: read, and in the kernel
  Clock::time_point arrived_at_{};   // the latest of them
};

}  // namespace shoal::tcp
