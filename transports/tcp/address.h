// Socket addresses: parsing, printing, and the choice of those that this host advertises.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal::tcp {

/// An IPv4 or IPv6 address with a port. A plain value.
struct SocketAddress {
  sockaddr_storage storage{};

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] socklen_t length() const noexcept { return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  /// "10.0.0.3:4711" or "[fd00::3]:4711".
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] bool is_link_local() const noexcept;
};

/// A numeric address without a port, IPv6 with brackets or without; no names are looked up. invalid_argument for anything else.
Result<SocketAddress> parse_host(std::string_view text);
/// The inverse of SocketAddress::to_string.
Result<SocketAddress> parse_address(std::string_view text);

/// The contents of Transport::address(): addresses by which one listener can be reached, best first, joined by commas.
[[nodiscard]] std::string join_addresses(std::span<const SocketAddress> addresses);
/// invalid_argument for anything that join_addresses did not make.
Result<std::vector<SocketAddress>> split_addresses(std::string_view text);

/// The addresses of this host for `interface_or_address`, with port 0; at most kMaxAdvertised. Empty text: all but loopback
/// and link-local ones, IPv4 first, bridges of containers and virtual machines last; loopback where there are no others. The
/// error lists the addresses of this host.
Result<std::vector<SocketAddress>> local_addresses(std::string_view interface_or_address);
inline constexpr std::size_t kMaxAdvertised = 8;

/// Makes `socket` use the interface of that address of this host where the system routes by source address. Returns an errno
/// value, or 0.
int bind_to(const Descriptor& socket, SocketAddress own) noexcept;

}  // namespace shoal::tcp
