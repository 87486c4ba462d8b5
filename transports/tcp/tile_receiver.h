// The receiving half of a link.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transports/tcp/acknowledger.h"
#include "transports/tcp/link_sockets.h"
#include "transports/transport.h"

namespace shoal::tcp {

/// Puts the tiles of all sockets back in order. Frames stay in the ring of the socket that brought them until they are
/// released. Thread rule: that of the link.
class TileReceiver {
 public:
  TileReceiver(LinkSockets& sockets, Acknowledger& acknowledger) : sockets_(sockets), acknowledger_(acknowledger) {}

  /// Reads once from a socket for tiles; true where a frame has become whole or the socket has ended.
  bool receive(LinkSocket& socket);
  /// See Link.
  [[nodiscard]] const Arrival* peek() noexcept;
  void release() noexcept;
  /// A tile can be peeked that no peek() has shown yet.
  [[nodiscard]] bool has_unseen_tile() const noexcept { return unseen_; }
  /// The socket that most likely brings the next tile.
  [[nodiscard]] LinkSocket& first_socket() noexcept { return sockets_.all().front(); }

  bool awaited = false;  ///< is in the Reactor's list of receivers whose peek() found no tile
  bool active = false;   ///< its link is in the Reactor's list of active links

 private:
  // What a socket reads at once where its front tile is not larger.
  static constexpr std::size_t kReadBytes = 64 << 10;

  void examine(LinkSocket& socket);
  void on_bad_front(LinkSocket& socket, ReceiveRing::Front front);
  void find_next();
  void set_unseen(bool unseen) noexcept;

  LinkSockets& sockets_;
  Acknowledger& acknowledger_;
  std::uint64_t next_ = 0;           // the number of the tile to deliver next
  LinkSocket* next_from_ = nullptr;  // the socket whose front is that tile, whole
  Arrival arrival_;
  bool unseen_ = false;
};

}  // namespace shoal::tcp
