// The sockets on which a rank listens for its peers.
#pragma once

#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/tcp/address.h"
#include "transports/tcp/tcp.h"

namespace shoal::tcp {

struct Listeners {
  std::vector<Descriptor> sockets;  ///< one for each address
  std::vector<SocketAddress> advertised;
};

/// Listens on what it advertises and nowhere else: an address that was not chosen may face another network. With rails: one
/// address for each. Errors: those of make_tcp_transport().
Result<Listeners> open_listeners(const TcpOptions& options);

}  // namespace shoal::tcp
