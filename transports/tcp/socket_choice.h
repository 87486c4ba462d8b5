// Which of a link's sockets pulls the next tile.
#pragma once

#include <span>

#include "transports/tcp/link_socket.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp {

/// The first one that has nothing to send; null where there is none. Small tiles stay on the first socket while it keeps up:
/// one warm path gives the best latency.
[[nodiscard]] LinkSocket* first_idle(std::span<LinkSocket> sockets) noexcept;

/// The one on which the window's next tile should arrive first, by the bytes in flight there and the measured rate. Null
/// where that socket takes nothing now: the tile waits for it, because on another one it would arrive later still.
/// Precondition: the window has a tile to pull.
[[nodiscard]] LinkSocket* soonest(std::span<LinkSocket> sockets, SendWindow& window) noexcept;

}  // namespace shoal::tcp
