// The options of the sockets that links use.
#pragma once

#include <chrono>

namespace shoal::tcp {

inline constexpr int kProbeAfterS = 2;  ///< where nothing is under way

/// Tuning only: a kernel that refuses an option still moves the bytes.
/// A host that has vanished while nothing is under way is known to be silent, and the connection ends, soon after `lost_after`.
/// `shares`: others carry tiles of the same link.
void tune(int socket, std::chrono::milliseconds lost_after, bool shares) noexcept;
/// Before that: the connection ends when its host has been silent for `time limit`, whatever is under way.
void tune_handshake(int socket, std::chrono::milliseconds time_limit) noexcept;

}  // namespace shoal::tcp
