// The options of the sockets that links use.
#pragma once

namespace shoal::tcp {

/// Tuning only: a kernel that refuses an option still moves the bytes.
void tune(int socket) noexcept;

}  // namespace shoal::tcp
