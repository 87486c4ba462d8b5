#include "transports/tcp/link_repair.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "transports/tcp/link.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {
namespace {

using std::chrono::milliseconds;

// After this time the link gives a silent connection up, and tries new ones at each address of the peer. The kernel would
// retransmit on the old one less and less often, so that a network that was down for long would seem down for as long again.
constexpr milliseconds kSilentPath{3000};
constexpr milliseconds kSilentRail{1500};  // where another network may answer
// A link whose remaining bytes are all in its rings and the kernel reports its end after this time, even if the caller takes
// none.
constexpr milliseconds kUntakenTimeout{300};

}  // namespace

std::optional<std::uint64_t> LinkRepair::give_up(std::size_t index) {
  if (!sockets_.may_reconnect() || index >= sockets_.all().size()) return {};
  LinkSocket& socket = sockets_.all()[index];
  sockets_.drop(socket);
  socket.ring.cut_short();
  return socket.ring.received();
}

void LinkRepair::resume(std::size_t index, Connection connection, std::uint64_t received) {
  if (!sockets_.may_reconnect()) return;
  LinkSocket& socket = sockets_.all()[index];
  socket.adopt(std::move(connection), sockets_.shape());
  socket.down = false;
  socket.low_water = 1;
  sockets_.status().note_repair();
  if (!sockets_.reactor().watch(socket)) return sockets_.drop(socket);
  sockets_.reactor().enqueue(socket);
  socket.readable = true;
  if (!socket.control) return sender_.resume(socket, received);
  acknowledger_.repeat_all();
  if (flush_.is_requested()) control_.add({ControlRecord::Kind::flush, 0, 0});
  acknowledger_.send();
}

bool LinkRepair::watch_silence() {
  const LinkShape& shape = sockets_.shape();
  bool changed = false;
  for (LinkSocket& socket : sockets_.all()) {
    if (socket.is_closed()) continue;
    const milliseconds silent = socket.silence();
    if (silent < (shape.rails ? kSilentRail : kSilentPath)) continue;
    if (sockets_.may_reconnect()) {
      if (shape.rails) {
        fmt::print(stderr, "shoal: tcp: rank {} has not answered on socket {} for {:.1f} s; continuing without that network\n",
                   sockets_.status().peer(), socket.index, static_cast<double>(silent.count()) / 1e3);
      }
      sockets_.drop(socket, silent);
      changed = true;
    } else if (silent >= shape.lost_after) {
      socket.link->close(sockets_.status().silent_for(silent));
      return true;
    }
  }
  return changed;
}

// The end of a socket shows that it has delivered everything. Until then lost packets may be retransmitted, after a time that
// grows with the length of the outage. Where the caller makes no room, the end does not show.
bool LinkRepair::watch_closing() {
  const LinkShape& shape = sockets_.shape();
  const auto now = Clock::now();
  std::uint64_t bytes = 0;
  bool may_bring = false;  // data may still be in flight
  bool full = false;
  bool silent = false;
  for (const LinkSocket& socket : sockets_.for_tiles()) {
    bytes += socket.read_bytes;
    if (socket.ended || socket.hung_up) continue;
    may_bring = true;
    bytes += socket.unread_bytes();
    full |= !socket.has_room();
    silent |= socket.silence() >= shape.lost_after;
  }
  if (bytes != arrived_bytes_ || full) {
    arrived_bytes_ = bytes;
    arrived_at_ = now;
  }
  const auto quiet_since = std::max(arrived_at_, sockets_.status().closing_since());
  if (!silent && now - quiet_since < (may_bring ? shape.lost_after : kUntakenTimeout)) return false;
  sockets_.end_by_peer();
  // What the kernel holds already can still be read; after it each socket shows its end.
  for (LinkSocket& socket : sockets_.all()) {
    if (socket.ended || socket.hung_up) continue;
    ::shutdown(socket.descriptor.get(), SHUT_RDWR);
    sockets_.hang_up(socket);
  }
  return true;
}

}  // namespace shoal::tcp
