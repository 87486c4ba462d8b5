// All sockets of a link: what the kernel takes, which connections are lost and replaced, and when the link ends thereby.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "transports/tcp/link_socket.h"
#include "transports/tcp/link_status.h"

namespace shoal::tcp {

class Reactor;

/// Reports its sockets to the Reactor. Calls on_drop() and close() of the link. Thread rule: that of the link.
class LinkSockets {
 public:
  LinkSockets(TcpLink& link, Reactor& reactor, const LinkShape& shape, LinkStatus status);

  /// Takes the connections of a new link; the last one is for control records. Errors: system_error where the kernel has no
  /// memory.
  Status open(std::vector<Connection> connections);

  [[nodiscard]] std::vector<LinkSocket>& all() noexcept { return sockets_; }
  [[nodiscard]] const std::vector<LinkSocket>& all() const noexcept { return sockets_; }
  [[nodiscard]] std::span<LinkSocket> for_tiles() const noexcept { return for_tiles_; }
  [[nodiscard]] LinkSocket& for_control() noexcept { return sockets_.back(); }
  [[nodiscard]] Reactor& reactor() const noexcept { return reactor_; }
  [[nodiscard]] const LinkShape& shape() const noexcept { return shape_; }
  /// Where the memory of all rings of the link is counted.
  [[nodiscard]] LinkRings& rings() noexcept { return rings_; }
  [[nodiscard]] LinkStatus& status() noexcept { return status_; }
  [[nodiscard]] const LinkStatus& status() const noexcept { return status_; }
  /// Whether a lost connection is to be replaced.
  [[nodiscard]] bool may_reconnect() const noexcept;

  /// False where the kernel has not taken all bytes; `taken` is their number.
  bool send(LinkSocket& socket, std::span<const std::byte> bytes, std::size_t& taken) {
    ssize_t count = 0;
    do {
      count = ::send(socket.descriptor.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    return note_taken(socket, count, bytes.size(), taken);
  }
  bool send(LinkSocket& socket, std::span<iovec> parts, std::size_t& taken);

  /// The peer has shut this socket, or it broke: read what is left.
  void hang_up(LinkSocket& socket);
  /// Reading has reached the end. `error`: an errno value, or 0.
  void on_end(LinkSocket& socket, int error);
  /// The peer has sent what cannot be right: "sent a corrupt tile header". It is retransmitted over a new connection.
  void on_damage(LinkSocket& socket, const std::string& what);
  /// Gives the connection up and requests a new one. What has arrived stays: if the peer is gone, nothing more arrives.
  /// `silent`: how long the peer's host has been silent.
  void drop(LinkSocket& socket, std::chrono::milliseconds silent = {});
  /// The peer has sent its close notice.
  void on_peer_left();
  /// The peer cannot be reached any more.
  void on_peer_lost(const std::string& why);
  /// Ends the link for what is known about the peer.
  void end_by_peer();
  /// Ends it from this side.
  void end(Status reason);
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  // A peer that sends damaged data this often in a row has failed.
  static constexpr int kMostDamaged = 16;

  // Evaluates the result of a send.
  bool note_taken(LinkSocket& socket, ssize_t count, std::size_t offered, std::size_t& taken) {
    taken = count < 0 ? 0 : static_cast<std::size_t>(count);
    socket.taken_bytes += taken;
    if (taken == offered) return true;
    on_blocked(socket, count < 0 ? errno : 0);
    return false;
  }
  void on_blocked(LinkSocket& socket, int error);
  [[nodiscard]] bool is_losing_connections() const noexcept;
  [[nodiscard]] bool no_tile_can_arrive() const noexcept;
  void start_closing();
  void stop(LinkSocket& socket) noexcept;

  TcpLink& link_;
  Reactor& reactor_;
  const LinkShape shape_;
  LinkStatus status_;
  LinkRings rings_;
  std::vector<LinkSocket> sockets_;
  std::span<LinkSocket> for_tiles_;  // of sockets_
};

}  // namespace shoal::tcp
