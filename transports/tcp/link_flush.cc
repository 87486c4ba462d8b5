#include "transports/tcp/link_flush.h"

#include <algorithm>
#include <utility>

namespace shoal::tcp {

void LinkFlush::start() {
  const LinkStatus& status = sockets_.status();
  if (status.closing()) return;
  acknowledger_.send();
  const bool counts = window_.sent() == window_.taken() && excused_ != window_.taken();
  if (!counts || window_.acknowledged() == window_.taken() || status.peer_is_gone() || !control_.has_room()) return;
  requested_ = true;
  in_peer_kernel_since_ = Clock::now();
  control_.add({ControlRecord::Kind::flush, 0, 0});
  control_.flush();
}

bool LinkFlush::is_pending(Clock::time_point now) noexcept {
  const LinkStatus& status = sockets_.status();
  if (!requested_ || status.closing() || status.peer_is_gone() || window_.acknowledged() == window_.taken()) return false;
  if (is_data_in_flight()) in_peer_kernel_since_ = now;
  return now - in_peer_kernel_since_ < kReadTimeout;
}

void LinkFlush::end() noexcept {
  if (std::exchange(requested_, false)) excuse_tiles();
}

bool LinkFlush::is_data_in_flight() const noexcept {
  return std::any_of(sockets_.all().begin(), sockets_.all().end(), [](const LinkSocket& socket) {
    return socket.down || socket.hung_up || !socket.outgoing.empty() || socket.outgoing.resends() ||
           socket.unacknowledged_bytes() > 0;
  });
}

}  // namespace shoal::tcp
