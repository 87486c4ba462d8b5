// Connections between two ranks that have finished their handshake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/trust/record_cipher.h"

namespace shoal::tcp {

/// A socket that has finished its handshake.
struct Connection {
  Descriptor socket;
  std::optional<SealingKeys> keys;  ///< where the job encrypts
};

/// All connections to one peer.
struct PeerSockets {
  int rank = 0;
  std::string address;              ///< where the peer was reached, for messages
  std::vector<Connection> sockets;  ///< non-blocking, by socket index: those for tiles, then the one for control records
};

/// The owner of connections that are replaced: the links.
class ReconnectHandler {
 public:
  virtual ~ReconnectHandler() = default;
  /// A new connection is about to replace this one: stops using the old one, and returns the number below which its tiles
  /// have arrived. Empty where the link has ended.
  virtual std::optional<std::uint64_t> give_up(int rank, std::size_t socket_index) = 0;
  /// The new connection is ready. The peer has the tiles below `received`.
  virtual void resume(int rank, std::size_t socket_index, Connection connection, std::uint64_t received) = 0;
  /// The peer refuses, or has been out of reach for too long.
  virtual void on_peer_lost(int rank, const std::string& why) = 0;
  /// A link that was not connected has its connections now.
  virtual void open(PeerSockets sockets) = 0;
  /// A link that was not connected cannot be connected.
  virtual void on_not_connected(int rank, const Status& why) = 0;
};

}  // namespace shoal::tcp
