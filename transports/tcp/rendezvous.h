// Connecting to all peers at once, and authenticating them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/trust/record_cipher.h"
#include "transports/common/connect_deadline.h"
#include "transports/tcp/address.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// The values that this rank sends in each handshake; kind, to_rank, socket_index, nonce and received are filled in.
using Identity = Hello;

struct PeerAddress {
  int rank = 0;
  std::vector<SocketAddress> addresses;  ///< best first; not empty. With rails: one for each, in the order of this rank's own
                                         ///< ones
};

/// A socket that has finished its handshake.
struct Connection {
  Descriptor socket;
  std::optional<SealingKeys> keys;  ///< where the job encrypts
};

struct PeerSockets {
  int rank = 0;
  std::string address;              ///< where the peer was reached, for messages
  std::vector<Connection> sockets;  ///< non-blocking, by socket index: those for tiles, then the one for control records
};

/// The owner of sockets that are replaced: the links.
class Rejoining {
 public:
  virtual ~Rejoining() = default;
  /// A new connection is about to replace this one: stops using the old one, and returns the number below which its tiles
  /// have arrived. Empty where the link has ended.
  virtual std::optional<std::uint64_t> give_up(int rank, std::size_t socket_index) = 0;
  /// The new connection is ready. The peer has the tiles below `received`.
  virtual void resume(int rank, std::size_t socket_index, Connection connection, std::uint64_t received) = 0;
  /// The peer refuses, or has been out of reach for too long.
  virtual void lose_peer(int rank, const std::string& why) = 0;
};

/// Connects to all peers at once, and later again where a socket is lost: the higher rank connects, the lower accepts. A
/// connection is a peer's only when the job id fits and both sides have proven that they hold the key; all other connections
/// are dropped, limited in number and time, and counted in the error and in refusals().
/// Thread rule: one thread at a time.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// `listeners` are non-blocking and listen. `rails`: own addresses, each on a network of its own; the sockets to a peer use
  /// them in turn, from this rank's end of a rail to the peer's end. Empty: the system chooses the route, and all sockets
  /// take the first address of a peer that answers. `lost_after`: how long a peer's host may be silent, after startup.
  static std::unique_ptr<Rendezvous> make(const Identity& self, const Key& key, std::vector<Descriptor> listeners,
                                          std::vector<PeerAddress> peers, std::vector<SocketAddress> rails,
                                          std::chrono::milliseconds lost_after);

  /// Returns when every socket has finished its handshake. Connections that are refused or dropped are tried again until the
  /// deadline. The result has the order of `peers`.
  /// Errors: timeout naming each missing rank and why; mismatch where a rank of this job has other settings.
  virtual Result<std::vector<PeerSockets>> connect_all(ConnectDeadline time_limit) = 0;

  // After connect_all(); nothing blocks.

  /// A socket is lost: connects again, or waits for the peer to do so and meanwhile checks that it is alive. No effect where
  /// that is in progress. `silent_since`: start of the silence of the peer's host.
  virtual void lose(int rank, std::size_t socket_index, std::chrono::steady_clock::time_point silent_since) = 0;
  /// The link to `rank` has ended.
  virtual void forget(int rank) = 0;
  /// Readable where step() has something to do.
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;
  /// step() will have something to do: call it a few dozen times a second.
  [[nodiscard]] virtual bool busy() const noexcept = 0;
  virtual void step(Rejoining& links) = 0;
  /// In a child of fork(): closes its copies of the sockets.
  virtual void leave_to_parent() noexcept = 0;
};

}  // namespace shoal::tcp
