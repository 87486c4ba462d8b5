#include "src/join/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "src/base/descriptor_limit.h"
#include "src/base/interfaces.h"
#include "src/base/tcp_options.h"
#include "src/join/startup_watch.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Sets `no_descriptors`, if given, where descriptors have run out: getaddrinfo() reports that like an unknown name.
Result<AddressList> resolve(const std::string& host, int port, int flags, bool* no_descriptors = nullptr) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  errno = 0;
  const int code = ::getaddrinfo(without_brackets(host).c_str(), std::to_string(port).c_str(), &hints, &found);
  const int error = code != 0 ? errno : 0;
  const bool denied = error == EMFILE || error == ENFILE;
  if (no_descriptors != nullptr) *no_descriptors = denied;
  if (denied) return descriptor_error(fmt::format("resolve '{}'", host), error);
  if (code != 0) return Status(StatusCode::system_error, fmt::format("resolve '{}': {}", host, ::gai_strerror(code)));
  return AddressList(found, &::freeaddrinfo);
}

bool is_loopback(const addrinfo& address) {
  if (address.ai_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address.ai_addr)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  if (address.ai_family != AF_INET6) return false;
  const auto& six = reinterpret_cast<const sockaddr_in6*>(address.ai_addr)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
}

bool all_loopback(const AddressList& addresses) {
  const addrinfo* address = addresses.get();
  while (address != nullptr && is_loopback(*address)) address = address->ai_next;
  return address == nullptr;
}

// On the host itself its own name may resolve to loopback, by /etc/hosts ("127.0.1.1 node01"), and on other hosts to an address
// that they reach. A user who wants loopback gives its address, or "localhost".
bool is_name_of_other_hosts(const std::string& host) {
  return !host.empty() && host != "localhost" && !resolve(host, 0, AI_NUMERICHOST).ok();
}

// Whether the user has chosen one of this host's addresses.
bool address_is_chosen() { return !setting("SHOAL_HOST_ADDRESS").empty() || !setting("SHOAL_SOCKET_IFNAME").empty(); }

// A port that the ranks have agreed on may be in use by a connection of this host, until that connection ends.
constexpr auto kPortPatience = std::chrono::seconds(1);

// Sets `listener` to a socket that listens on `address` and returns 0, or returns an errno.
int listen_at(int family, const sockaddr* address, socklen_t length, Descriptor* listener) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return errno;
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // The unspecified address includes all of IPv4, whatever the system's default.
  if (family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr))
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  const auto until = Clock::now() + kPortPatience;
  while (::bind(socket.get(), address, length) != 0) {
    if (errno != EADDRINUSE || Clock::now() >= until) return errno;
    ::poll(nullptr, 0, 20);  // the system does not notify when the port becomes free
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) return errno;
  *listener = std::move(socket);
  return 0;
}

Result<Descriptor> listen_everywhere(int port) {
  Descriptor listener;
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  if (listen_at(AF_INET6, reinterpret_cast<const sockaddr*>(&six), sizeof six, &listener) == 0) return listener;
  sockaddr_in four{};  // a system without IPv6
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  const int error = listen_at(AF_INET, reinterpret_cast<const sockaddr*>(&four), sizeof four, &listener);
  if (error != 0) return descriptor_error(fmt::format("listen on *:{}", port), error);
  return listener;
}

// Waits for `events` in slices that end at the deadline. 0: ready; else an errno.
int wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return ETIMEDOUT;
    pollfd descriptor{fd, events, 0};
    const int ready = ::poll(&descriptor, 1, static_cast<int>(std::min<long long>(left, 60'000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

bool connected_to_itself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage other{};
  socklen_t own_length = sizeof own;
  socklen_t other_length = sizeof other;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_length) == 0 && own_length == other_length &&
         std::memcmp(&own, &other, own_length) == 0;
}

// The Status for an errno of wait_for().
Status wait_error(const char* what, int error) {
  if (error == ETIMEDOUT) return {StatusCode::timeout, fmt::format("{}: no answer before the deadline", what)};
  return system_error(what, error);
}

// The Status for an errno of the connection. ETIMEDOUT means here that the kernel has ended the connection; no deadline of the
// caller has passed then.
Status stream_error(const char* what, int error) {
  Status status = system_error(what, error);
  const bool by_other_side = error == ECONNRESET || error == EPIPE || error == ETIMEDOUT || error == EHOSTUNREACH;
  return by_other_side ? Status(StatusCode::peer_failed, status.message()) : status;
}

}  // namespace

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string host_address_setting() { return without_brackets(setting("SHOAL_HOST_ADDRESS")); }

std::string host_and_port(const std::string& host, int port) {
  const std::string bare = without_brackets(host);
  return bare.find(':') == std::string::npos ? fmt::format("{}:{}", bare, port) : fmt::format("[{}]:{}", bare, port);
}

std::string own_address() {
  if (const std::string given = host_address_setting(); !given.empty()) return given;
  const std::string wanted = setting("SHOAL_SOCKET_IFNAME");
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "127.0.0.1";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::string best = "127.0.0.1";
  int least = std::numeric_limits<int>::max();
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const bool named = !wanted.empty() && wanted == entry->ifa_name;
    if (!named && (!wanted.empty() || (entry->ifa_flags & IFF_LOOPBACK) != 0)) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (family == AF_INET) {
      ::inet_ntop(family, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
    } else {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;  // needs a scope that the peers do not know
      ::inet_ntop(family, &address, text, sizeof text);
    }
    const int badness = interface_badness(entry->ifa_name, family);
    if (badness >= least) continue;
    least = badness;
    best = text;
  }
  return best;
}

Result<int> free_port(const std::string& host) {
  const auto listener = listen_on(host, 0);
  if (!listener.ok()) return listener.status();
  return port_of(*listener);
}

Result<int> port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return system_error("getsockname", errno);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

Result<Descriptor> listen_on(const std::string& host, int port) {
  if (host.empty()) return listen_everywhere(port);
  auto addresses = resolve(host, port, AI_PASSIVE);
  if (!addresses.ok()) return addresses.status();
  const bool for_others = is_name_of_other_hosts(host);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    if (for_others && is_loopback(*address)) continue;
    Descriptor listener;
    error = listen_at(address->ai_family, address->ai_addr, address->ai_addrlen, &listener);
    if (error == 0) return listener;
  }
  // A name that resolves to another host (a load balancer, a headless service) or only to loopback: listen on the address that
  // the user has chosen for this host, or on every address where none was chosen.
  if (error == EADDRNOTAVAIL) {
    const std::string own = address_is_chosen() ? own_address() : std::string();
    if (own != host) return listen_on(own, port);
    if (for_others) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("listen on {}: this host has no such address, or the name resolves to loopback only; set "
                                "SHOAL_HOST_ADDRESS to the numeric address by which other hosts reach this one",
                                host_and_port(host, port)));
    }
  }
  return descriptor_error(fmt::format("listen on {}", host_and_port(host, port)), error);
}

Result<Descriptor> connect_to(const std::string& host, int port, Clock::time_point deadline, bool has_listened) {
  const bool for_others = is_name_of_other_hosts(host);
  int error = ETIMEDOUT;
  auto pause = std::chrono::milliseconds(2);
  std::string unresolved;
  do {
    bool no_descriptors = false;
    startup_waits_for(fmt::format("the name resolution of {}", host));
    auto addresses = resolve(host, port, 0, &no_descriptors);
    if (no_descriptors) return addresses.status();
    unresolved = addresses.ok() ? "" : addresses.status().message();  // the name of a pod may become known a little later
    // The name is that of this host, where listen_on() uses the chosen address instead.
    if (addresses.ok() && for_others && address_is_chosen() && all_loopback(*addresses))
      addresses = resolve(own_address(), port, 0);
    for (const addrinfo* address = addresses.ok() ? addresses->get() : nullptr; address != nullptr;
         address = address->ai_next) {
      startup_waits_for(fmt::format("a connection to {}", host_and_port(host, port)));
      Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket.get() < 0) return descriptor_error(fmt::format("a socket to {}", host_and_port(host, port)), errno);
      int attempt = ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
      if (attempt == EINPROGRESS) {
        attempt = wait_for(socket.get(), POLLOUT, std::min(deadline, Clock::now() + std::chrono::seconds(5)));
        socklen_t length = sizeof attempt;
        if (attempt == 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &attempt, &length);
      }
      // A connection to a free port of this host may get the same port as its own, and so be connected to itself.
      if (attempt == 0 && connected_to_itself(socket.get())) attempt = ECONNREFUSED;
      if (attempt != ETIMEDOUT) error = attempt;  // an earlier answer is more informative than a last attempt without one
      if (attempt == 0) {
        const int on = 1;
        ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        tcp::tune_handshake(socket.get(), silence_limit());
        return socket;
      }
    }
    if (has_listened && error == ECONNREFUSED)
      return Status(StatusCode::peer_failed,
                    system_error(fmt::format("connect to {}", host_and_port(host, port)), error).message());
    startup_waits_for(unresolved.empty()
                          ? fmt::format("a connection to {} ({})", host_and_port(host, port), std::strerror(error))
                          : fmt::format("the name resolution of {} ({})", host, unresolved));
    // The server may not have started yet: retry at growing intervals.
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left > std::chrono::milliseconds(0)) ::poll(nullptr, 0, static_cast<int>(std::min(pause, left).count()));
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  } while (Clock::now() < deadline);
  if (!unresolved.empty())
    return Status(StatusCode::timeout, fmt::format("connect to {}: {}", host_and_port(host, port), unresolved));
  return Status(StatusCode::timeout, system_error(fmt::format("connect to {}", host_and_port(host, port)), error).message());
}

bool is_of_same_user(int socket) noexcept {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == ::geteuid();
}

std::chrono::milliseconds silence_limit() {
  const auto limit = time_setting("SHOAL_LOST_AFTER");
  return limit.ok() ? *limit : std::chrono::seconds(30);  // connect_job() reports the invalid value
}

Status send_all(int fd, const void* data, std::size_t bytes, Clock::time_point deadline) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      next += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(fd, POLLOUT, deadline); error != 0) return wait_error("send", error);
    } else if (errno != EINTR) {
      return stream_error("send", errno);
    }
  }
  return {};
}

Status receive_all(int fd, void* data, std::size_t bytes, Clock::time_point deadline) {
  for (auto rest = std::span(static_cast<std::byte*>(data), bytes); !rest.empty();) {
    const auto got = receive_some(fd, rest, deadline);
    if (!got.ok()) return got.status();
    rest = rest.subspan(*got);
  }
  return {};
}

Result<std::size_t> receive_some(int fd, std::span<std::byte> target, Clock::time_point deadline) {
  for (;;) {
    const ssize_t got = ::recv(fd, target.data(), target.size(), MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return Status(StatusCode::peer_failed, "the peer closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const int error = wait_for(fd, POLLIN, deadline); error != 0) return wait_error("receive", error);
    } else if (errno != EINTR) {
      return stream_error("receive", errno);
    }
  }
}

}  // namespace shoal
