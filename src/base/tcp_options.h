// The options of the sockets that links use.
#pragma once

#include <chrono>

namespace shoal::tcp {

inline constexpr int kProbeAfterS = 2;  ///< on an idle connection

/// Tuning only: a kernel that refuses an option still moves the bytes.
/// Probes detect a host that vanishes while the connection is idle; the connection ends soon after `lost_after`.
/// `shares`: other sockets carry tiles of the same link.
void tune(int socket, std::chrono::milliseconds lost_after, bool shares) noexcept;
/// Before tune(), during the handshake: the connection ends when the peer's host has been silent for `time_limit`, whether or
/// not data is in flight.
void tune_handshake(int socket, std::chrono::milliseconds time_limit) noexcept;

}  // namespace shoal::tcp
