#include "torch_plugin/process_group/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string_view>

namespace shoal::torch {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

/// An IPv6 address may be in brackets, as in front of a port.
std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string chosen_by(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string() : std::string(value);
}

/// The same order as in the library (src/join/socket.h, which is not installed for clients), so that all traffic uses one
/// network: IPv4 before IPv6, and last the bridges of containers and virtual machines, whose addresses many hosts share.
int badness_of(std::string_view interface, int family) {
  constexpr std::array<std::string_view, 5> kBridges{"docker", "br-", "virbr", "cni", "lxc"};
  const bool bridge = std::ranges::any_of(kBridges, [&](std::string_view prefix) { return interface.starts_with(prefix); });
  return (bridge ? 2 : 0) + (family == AF_INET6 ? 1 : 0);
}

/// The address as text; empty if other hosts cannot use it.
std::string text_of(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
  } else if (address.sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&six)) inet_ntop(AF_INET6, &six, text.data(), text.size());
  }
  return text.data();
}

/// The best address of interface `wanted`, or of all interfaces except the loopback if `wanted` is empty; the loopback's if
/// there is none.
std::string address_of_interface(const std::string& wanted) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return kLoopback;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::string best = kLoopback;
  int least = std::numeric_limits<int>::max();
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (wanted.empty() ? (entry->ifa_flags & IFF_LOOPBACK) != 0 : wanted != entry->ifa_name) continue;
    const std::string text = text_of(*entry->ifa_addr);
    const int badness = badness_of(entry->ifa_name, entry->ifa_addr->sa_family);
    if (text.empty() || badness >= least) continue;
    least = badness;
    best = text;
  }
  return best;
}

/// 0, or an errno.
int listen_at(const addrinfo& place, Listener& listener) {
  const int made = socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) return errno;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (bind(made, place.ai_addr, place.ai_addrlen) != 0 || listen(made, SOMAXCONN) != 0 ||
      getsockname(made, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    (void)close(made);
    return error;
  }
  listener = {.socket = made,
              .port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                                          : reinterpret_cast<const sockaddr_in&>(address).sin_port)};
  return 0;
}

}  // namespace

std::string own_address(const Communicator& communicator) {
  if (std::string given = chosen_by("SHOAL_HOST_ADDRESS"); !given.empty()) return without_brackets(given);
  const std::string interface = chosen_by("SHOAL_SOCKET_IFNAME");
  return interface.empty() && communicator.nodes() == 1 ? kLoopback : address_of_interface(interface);
}

Result<Listener> listen_on(const std::string& address) {
  const std::string what = "listen on " + address;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(without_brackets(address).c_str(), "0", &hints, &found);
  if (code != 0) return Status(StatusCode::system_error, what + ": " + gai_strerror(code));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = EADDRNOTAVAIL;
  Listener listener;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    if (error = listen_at(*place, listener); error == 0) return listener;
  }
  const std::string failed = system_error(what, error).message();
  if (error != EADDRNOTAVAIL) return Status(StatusCode::system_error, failed);
  return Status(StatusCode::system_error,
                failed + "; set SHOAL_HOST_ADDRESS to an address of this host that the other ranks can reach");
}

}  // namespace shoal::torch
