// The address at which other ranks reach this one, and a socket that listens only there.
#pragma once

#include <cstdint>
#include <string>

#include <shoal/communicator.h>
#include <shoal/status.h>

namespace shoal::torch {

/// The address at which the other ranks reach this one: SHOAL_HOST_ADDRESS, else that of SHOAL_SOCKET_IFNAME, else the
/// loopback if all ranks are on this host, else the first interface that is up, bridges of containers and virtual machines
/// last.
std::string own_address(const Communicator& communicator);

struct Listener {
  int socket = -1;  ///< the caller must close it
  std::uint16_t port = 0;
};

/// Listens on a free port of `address` (a numeric one, IPv4 or IPv6, or a name of this host), and on no other address.
/// Errors: system_error ("listen on 10.0.0.1: Cannot assign requested address ...").
Result<Listener> listen_on(const std::string& address);

}  // namespace shoal::torch
