#include "transports/tcp/acknowledger.h"

#include <cstdint>

namespace shoal::tcp {

void Acknowledger::send() {
  for (LinkSocket& socket : sockets_.for_tiles()) {
    if (socket.acknowledged == socket.ring.received()) continue;
    if (sockets_.for_control().is_closed() || !control_.has_room()) return;
    socket.acknowledged = socket.ring.received();
    control_.add({ControlRecord::Kind::acknowledge, static_cast<std::uint32_t>(socket.index), socket.acknowledged});
  }
  bytes_ = tiles_ = 0;
  control_.flush();
}

// An acknowledgement between two calls, and then as many bytes as before, look like a rest; they only cause one record.
void Acknowledger::send_rest() {
  if (bytes_ != 0 && bytes_ == bytes_at_last_call_) send();
  bytes_at_last_call_ = bytes_;
}

void Acknowledger::repeat_all() noexcept {
  for (LinkSocket& socket : sockets_.for_tiles()) socket.acknowledged = 0;
}

}  // namespace shoal::tcp
