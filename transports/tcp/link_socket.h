// One socket of a link, and what the link knows about it.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/descriptor.h"
#include "src/trust/record_cipher.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/drain_rate.h"
#include "transports/tcp/receive_ring.h"
#include "transports/tcp/send_window.h"

namespace shoal::tcp {

class TcpLink;

inline constexpr std::size_t kMostSockets = 16;  ///< to a peer, for tiles

/// Links of a transport beyond this number have smaller receive rings, so that many links take less memory.
inline constexpr std::size_t kManyLinks = 64;
inline constexpr std::size_t kRoomOfManyBytes = 128 << 10;

/// The room of a socket to receive, in tiles, where the transport has `links` others: `tiles`, or fewer. One is enough, as the
/// sender has room for more.
constexpr std::size_t tiles_with_room(std::size_t tiles, std::size_t tile_bytes, std::size_t links) noexcept {
  return links < kManyLinks ? tiles : std::min(tiles, std::max<std::size_t>(kRoomOfManyBytes / tile_bytes, 1));
}

/// Parameters that must be the same at both ends of a link, except for the room and the last three.
struct LinkShape {
  std::size_t tile_bytes = 0;
  std::size_t tiles_per_socket = 0;
  int sockets = 1;  ///< for tiles
  bool integrity = false;
  bool rails = false;  ///< the sockets use several networks: a silent one is replaced by another
  std::size_t lend_from_bytes = 0;
  bool packing = false;  ///< payloads leave packed where that makes them smaller
  std::chrono::milliseconds lost_after{};
};

/// The last socket of a link carries control records, all others tiles. Thread rule: that of the link.
struct LinkSocket {
  TcpLink* link = nullptr;
  std::size_t index = 0;  ///< among the sockets of the link
  bool control = false;   ///< carries control records
  Descriptor descriptor;
  std::unique_ptr<RecordCipher> cipher;  ///< where the job encrypts; belongs to the connection

  // Sending
  SendRange outgoing;             ///< tiles
  bool blocked = false;           ///< the kernel took less than offered; it will report when it takes more
  bool was_blocked = false;       ///< is in the Reactor's list of blocked sockets
  std::uint64_t taken_bytes = 0;  ///< bytes that the kernel has taken since the connection exists
  DrainRate rate;                 ///< used where there are several sockets

  // Receiving
  ReceiveRing ring;                ///< none for control records
  std::uint64_t read_bytes = 0;    ///< of tiles
  std::uint64_t acknowledged = 0;  ///< the latest ring.received() that the peer was sent
  int damaged_in_a_row = 0;        ///< how often the peer has sent damaged data, by new connections too
  bool readable = true;            ///< reading may bring bytes: as far as known the kernel has some
  bool queued = false;             ///< is in the Reactor's list of sockets to read from
  bool partial = false;            ///< is in the Reactor's list of sockets whose front frame has arrived in part
  int low_water = 1;               ///< SO_RCVLOWAT: the kernel reports when it has this many bytes

  // Life
  bool hung_up = false;  ///< the peer will send no more: read to the end
  bool down = false;     ///< it has no connection: a new one is being made
  bool ended = false;    ///< nothing moves here any more

  [[nodiscard]] bool is_idle() const noexcept { return outgoing.empty() && !down; }
  /// Nothing moves now, and perhaps never again.
  [[nodiscard]] bool is_closed() const noexcept { return ended || down; }

  void adopt(Connection connection, const LinkShape& shape);
  /// Whether the ring has enough room for a worthwhile read.
  [[nodiscard]] bool has_room() const noexcept;
  /// As recv(): at most `want` bytes, or, of an encrypted connection, one record of at most `room`. EBADMSG: it was damaged.
  ssize_t read(std::byte* target, std::size_t want, std::size_t room);
  /// Makes the kernel report only when this many bytes have arrived.
  void set_low_water(std::size_t bytes) noexcept;
  /// Makes it report only when the rest of the front frame can have arrived: a sleeping caller is not woken by each packet,
  /// of which a frame has dozens on a slow network.
  void await_front() noexcept;
  /// Since when the peer's host has not answered; 0 where it answers.
  [[nodiscard]] std::chrono::milliseconds silence() const noexcept;
  /// Since its last answer; 0 where the system does not report it.
  [[nodiscard]] std::chrono::milliseconds since_last_answer() const noexcept;
  /// What the kernel holds: to be read, and for the other side to acknowledge.
  [[nodiscard]] std::size_t unread_bytes() const noexcept;
  [[nodiscard]] std::size_t unacknowledged_bytes() const noexcept;
  [[nodiscard]] std::size_t memory_bytes() const noexcept {
    return ring.memory_bytes() + (cipher == nullptr ? 0 : cipher->memory_bytes());
  }

 private:
  ssize_t read_encrypted(std::byte* target, std::size_t room);
};

// Every tile passes through these functions, so they are inlined; see tests/cost.

inline bool LinkSocket::has_room() const noexcept {
  if (is_closed()) return false;
  // The front frame always fits.
  if (cipher == nullptr && !ring.front_is_whole()) return true;
  if (control) return true;
  const std::size_t free = ring.size() - ring.filled_bytes();
  if (cipher != nullptr) {
    const std::size_t waiting = cipher->waiting_bytes();
    return waiting == 0 || waiting > cipher->most_bytes() || waiting <= free;
  }
  // Behind it, small reads into the last free bytes would cost more than they bring.
  return free >= ring.size() / 4;
}

inline ssize_t LinkSocket::read(std::byte* target, std::size_t want, std::size_t room) {
  if (cipher != nullptr) return read_encrypted(target, room);
  ssize_t got = 0;
  do {
    got = ::recv(descriptor.get(), target, want, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace shoal::tcp
