#include "transports/tcp/listeners.h"

#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace shoal::tcp {
namespace {

constexpr int kBacklog = 4096;

Result<Descriptor> bind_and_listen(const SocketAddress& address) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto failed = [&] { return system_error(fmt::format("tcp: listen on {}", address.to_string()), errno); };
  if (!socket.valid()) return failed();
  if (address.port() != 0) {
    const int on = 1;
    static_cast<void>(::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  }
  if (::bind(socket.get(), address.raw(), address.length()) != 0 || ::listen(socket.get(), kBacklog) != 0) return failed();
  return socket;
}

// One address for each rail; without rails all by which this host may be reached.
Result<std::vector<SocketAddress>> addresses_of(const TcpOptions& options) {
  if (options.rails.empty()) return local_addresses(options.interface_or_address);
  std::vector<SocketAddress> addresses;
  for (const std::string& rail : options.rails) {
    auto found = local_addresses(rail);
    if (!found.ok()) return found.status();
    addresses.push_back(found->front());
  }
  return addresses;
}

}  // namespace

Result<Listeners> open_listeners(const TcpOptions& options) {
  auto addresses = addresses_of(options);
  if (!addresses.ok()) return addresses.status();
  Listeners listeners;
  Status failure;
  for (SocketAddress address : *addresses) {
    address.set_port(options.port);
    auto socket = bind_and_listen(address);
    if (!socket.ok()) {
      if (!options.rails.empty()) return socket.status();  // the user has named that address
      failure = socket.status();  // an address that is being added or removed must not block the other ones
      continue;
    }
    SocketAddress bound;
    socklen_t length = sizeof bound.storage;
    if (::getsockname(socket->get(), reinterpret_cast<sockaddr*>(&bound.storage), &length) != 0)
      return system_error("tcp: getsockname", errno);
    address.set_port(bound.port());
    listeners.sockets.push_back(std::move(*socket));
    listeners.advertised.push_back(address);
  }
  if (listeners.sockets.empty()) return failure;
  return listeners;
}

}  // namespace shoal::tcp
