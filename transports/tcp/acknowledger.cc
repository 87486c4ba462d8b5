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

void Acknowledger::repeat_all() noexcept {
  for (LinkSocket& socket : sockets_.for_tiles()) socket.acknowledged = 0;
}

}  // namespace shoal::tcp
