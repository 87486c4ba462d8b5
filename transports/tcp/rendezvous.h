// Connecting to all peers at once, and telling them from strangers.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/tcp/address.h"
#include "transports/tcp/descriptor.h"
#include "transports/tcp/wire.h"

namespace shoal::tcp {

/// What this rank says of itself in each handshake; kind, to_rank, socket_index and nonce are filled in.
using Identity = Hello;

struct PeerAddress {
  int rank = 0;
  std::vector<SocketAddress> addresses;  ///< best first; not empty
};

struct PeerSockets {
  int rank = 0;
  std::string address;              ///< where the peer was reached, for messages
  std::vector<Descriptor> sockets;  ///< non-blocking, by socket index
};

/// Accepts from the ranks above this one and connects to those below, all at the same time, until every socket has finished its
/// handshake. A connection is a peer's only when the job id fits and both sides have proven that they hold `key`; all others
/// are dropped, limited in number and time, and counted in the error and in refusals(). Connections that are refused or dropped
/// are tried again until the deadline. `listeners` are non-blocking and listen. The result has the order of `peers`.
/// Errors: timeout naming each rank that is missing and why; mismatch where a rank of this job has other settings.
Result<std::vector<PeerSockets>> connect_peers(const Identity& self, const Key& key, std::span<const Descriptor> listeners,
                                               std::span<const PeerAddress> peers,
                                               std::chrono::steady_clock::time_point deadline);

}  // namespace shoal::tcp
