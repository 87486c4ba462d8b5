// Where the ranks of a host meet: a Unix socket that one of them, the keeper, serves (store_relay.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/join/store_client.h"
#include "src/join/tcp_store.h"

namespace shoal {

/// The most ranks that meet at one keeper, so that it needs no more descriptors. The ranks of a larger host have several.
inline constexpr int kMostKept = 128;

/// The abstract name of the socket for `group` of the ranks of this host. Other users cannot guess it, and learn it only when
/// it is bound.
std::string keeper_socket_name(const StoreAddress& address, int group);

/// Connects to the keeper. Errors: peer_failed if none is there, unsupported if the socket belongs to another user, and those
/// of introduce_to_store().
Result<StoreConnection> reach_keeper(const std::string& name, const StoreAddress& address,
                                     std::chrono::steady_clock::time_point deadline);

/// The first rank that comes becomes the keeper: it gets the listener, which holds the connections of the others until it
/// serves them. They get a connection. Neither: the ranks cannot meet, because another user has the name, or the keeper has
/// not served by `deadline`.
struct KeeperMeeting {
  Descriptor listener;
  std::optional<StoreConnection> connection;
};
KeeperMeeting meet_at_keeper(const std::string& name, const StoreAddress& address,
                             std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
