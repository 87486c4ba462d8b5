#include "transports/tcp/link_sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "src/base/tcp_options.h"
#include "transports/tcp/link.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {

LinkSockets::LinkSockets(TcpLink& link, Reactor& reactor, const LinkShape& shape, LinkStatus status)
    : link_(link), reactor_(reactor), shape_(shape), status_(std::move(status)), rings_(reactor.ring_memory(), &link) {}

Status LinkSockets::open(std::vector<Connection> connections) {
  sockets_.reserve(connections.size());  // the Reactor and epoll point to them
  for (Connection& connection : connections) {
    LinkSocket& socket = sockets_.emplace_back();
    socket.link = &link_;
    socket.index = sockets_.size() - 1;
    socket.control = sockets_.size() == connections.size();
    socket.adopt(std::move(connection), shape_);
    if (socket.control) break;
    const std::size_t room = tiles_with_room(shape_.tiles_per_socket, shape_.tile_bytes, reactor_.connected_links());
    auto ring = ReceiveRing::make(room * frame_bytes(shape_.tile_bytes), shape_.tile_bytes, &rings_);
    if (!ring.ok()) return ring.status();
    socket.ring = std::move(*ring);
  }
  for_tiles_ = std::span(sockets_).first(sockets_.size() - 1);
  return {};
}

bool LinkSockets::may_reconnect() const noexcept {
  return !status_.closing() && !status_.peer_is_gone() && reactor_.reconnects();
}

bool LinkSockets::send(LinkSocket& socket, std::span<iovec> parts, std::size_t& taken) {
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  std::size_t offered = 0;
  for (const iovec& part : parts) offered += part.iov_len;
  ssize_t count = 0;
  do {
    count = ::sendmsg(socket.descriptor.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (count < 0 && errno == EINTR);
  return note_taken(socket, count, offered, taken);
}

// `error`: an errno value; 0 where the kernel has taken some bytes.
void LinkSockets::on_blocked(LinkSocket& socket, int error) {
  socket.blocked = true;
  if (!socket.control) reactor_.note_blocked(socket);
  if (error == 0 || error == EAGAIN || error == EWOULDBLOCK) return;
  // Where the kernel is out of memory rather than out of room, no event may follow.
  if (error == ENOBUFS || error == ENOMEM) return reactor_.retry_soon();
  // Tiles may have arrived before the connection broke: the link ends only when reading reaches the end.
  status_.note_error(error);
  hang_up(socket);
}

void LinkSockets::hang_up(LinkSocket& socket) {
  socket.hung_up = true;
  socket.readable = true;
  if (socket.has_room()) reactor_.enqueue(socket);
  if (status_.closing()) return;
  // While the old connection is read to its end, a new one is made. If the peer is gone, connecting shows that earlier.
  if (may_reconnect()) {
    reactor_.note_lost(socket);
  } else if (!socket.control || !status_.peer_has_left()) {
    start_closing();
  }
}

void LinkSockets::on_end(LinkSocket& socket, int error) {
  status_.note_error(error);
  if (may_reconnect()) {
    // A host that has not answered for `lost_after` counts as lost. The kernel may end the connection before that time: after
    // a quarter of an hour (tcp_retries2). TCP_USER_TIMEOUT would prolong that, but would also end connections to a peer that
    // is only slow.
    const std::chrono::milliseconds silent =
        error == ETIMEDOUT && !shape_.rails ? socket.since_last_answer() : std::chrono::milliseconds(0);
    return silent >= shape_.lost_after ? link_.close(status_.silent_for(silent)) : drop(socket);
  }
  stop(socket);
  hang_up(socket);
  if (no_tile_can_arrive()) end_by_peer();
}

void LinkSockets::on_damage(LinkSocket& socket, const std::string& what) {
  if (may_reconnect() && ++socket.damaged_in_a_row < kMostDamaged) {
    status_.note_trouble(what);
    socket.ring.cut_short();
    return drop(socket);
  }
  link_.close(status_.peer_failed(what));
}

void LinkSockets::drop(LinkSocket& socket, std::chrono::milliseconds silent) {
  using Clock = LinkStatus::Clock;
  if (!socket.down) {
    reactor_.forget(socket);
    socket.descriptor.reset();
    socket.down = true;
    socket.blocked = socket.readable = socket.hung_up = false;
    socket.outgoing.drop();
    link_.on_drop(socket);
  }
  // Where nothing was in flight, the host may have been reachable until the first probe.
  const auto since = silent.count() == 0 ? Clock::time_point{} : Clock::now() - silent + std::chrono::seconds(kProbeAfterS);
  status_.note_silence(since);
  reactor_.note_lost(socket, since);
}

void LinkSockets::on_peer_left() {
  status_.note_peer_left();
  if (is_losing_connections()) start_closing();
}

void LinkSockets::on_peer_lost(const std::string& why) {
  if (status_.closing()) return;
  status_.note_peer_lost(why, LinkStatus::Clock::now());
  if (is_losing_connections()) start_closing();
}

// For a time when lost connections are not replaced any more. Without the socket for control records, no tile would be
// acknowledged.
bool LinkSockets::is_losing_connections() const noexcept {
  const auto lost = [](const LinkSocket& socket) { return socket.hung_up || socket.down; };
  return std::any_of(for_tiles_.begin(), for_tiles_.end(), lost) || (!status_.peer_has_left() && lost(sockets_.back()));
}

bool LinkSockets::no_tile_can_arrive() const noexcept {
  return std::all_of(for_tiles_.begin(), for_tiles_.end(), [](const LinkSocket& socket) { return socket.ended; });
}

// Nothing is sent any more, what has arrived is still delivered.
void LinkSockets::start_closing() {
  if (status_.closing()) return;
  status_.start_closing(LinkStatus::Clock::now());
  for (LinkSocket& socket : sockets_) socket.ended |= socket.down;
  reactor_.forget_lost(link_);
  if (no_tile_can_arrive()) end_by_peer();
  reactor_.note_closing(link_);
}

void LinkSockets::end_by_peer() {
  if (status_.has_ended()) return;
  status_.end_by_peer();
  reactor_.note_closing(link_);
}

void LinkSockets::end(Status reason) {
  const bool had_ended = status_.has_ended();
  status_.end(std::move(reason));
  for (LinkSocket& socket : sockets_) stop(socket);
  reactor_.forget_lost(link_);
  if (!had_ended) reactor_.note_closing(link_);
}

void LinkSockets::stop(LinkSocket& socket) noexcept {
  if (socket.ended) return;
  socket.ended = true;
  socket.readable = false;
  if (socket.down) return;
  reactor_.forget(socket);
  if (!reactor_.in_owner()) return;
  // Unread bytes would turn the orderly end into a reset, which could overtake the last bytes that this rank has sent. Not by
  // MSG_TRUNC without a buffer: ThreadSanitizer takes that for a write to address 0 by every thread that does it.
  std::array<char, 16 << 10> unread;
  while (::recv(socket.descriptor.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
  }
  ::shutdown(socket.descriptor.get(), SHUT_RDWR);
}

std::size_t LinkSockets::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const LinkSocket& socket : sockets_) bytes += socket.memory_bytes();
  return bytes;
}

}  // namespace shoal::tcp
