#include "transports/tcp/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "src/base/interfaces.h"
#include "src/base/text.h"

namespace shoal::tcp {
namespace {

struct LocalAddress {
  std::string interface;
  SocketAddress address;
  bool loopback = false;

  [[nodiscard]] int badness() const noexcept { return interface_badness(interface, address.family()); }
};

std::string host_text(const SocketAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address.family() == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr)
                          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
  return ::inet_ntop(address.family(), bytes, text.data(), text.size()) == nullptr ? "?" : text.data();
}

Result<std::vector<LocalAddress>> list_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return system_error("list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<LocalAddress> found;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6) continue;
    LocalAddress local{i->ifa_name, {}, (i->ifa_flags & IFF_LOOPBACK) != 0};
    std::memcpy(&local.address.storage, i->ifa_addr,
                i->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    local.address.set_port(0);
    found.push_back(std::move(local));
  }
  return found;
}

std::string describe(const std::vector<LocalAddress>& locals) {
  std::string text;
  for (const LocalAddress& local : locals) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", local.interface, host_text(local.address));
  }
  return text.empty() ? "no addresses" : text;
}

}  // namespace

std::uint16_t SocketAddress::port() const noexcept {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage)->sin_port
                                   : reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
}

void SocketAddress::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  }
}

std::string SocketAddress::to_string() const {
  return family() == AF_INET ? fmt::format("{}:{}", host_text(*this), port())
                             : fmt::format("[{}]:{}", host_text(*this), port());
}

bool SocketAddress::is_link_local() const noexcept {
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

Result<SocketAddress> parse_host(std::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  const std::string host(bracketed ? text.substr(1, text.size() - 2) : text);
  const auto bad = [&] {
    return Status(StatusCode::invalid_argument, fmt::format("'{}' is no numeric IPv4 or IPv6 address", text));
  };
  if (host.find('\0') != std::string::npos) return bad();
  SocketAddress address;
  auto* four = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (!bracketed && ::inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    return address;
  }
  auto* six = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    return address;
  }
  return bad();
}

Result<SocketAddress> parse_address(std::string_view text) {
  const auto bad = [&] { return Status(StatusCode::invalid_argument, fmt::format("'{}' is no address with a port", text)); };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.starts_with('[')) return bad();
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0) return bad();
  auto address = parse_host(host);
  if (!address.ok() || bracketed != (address->family() == AF_INET6)) return bad();
  address->set_port(port);
  return address;
}

std::string join_addresses(std::span<const SocketAddress> addresses) {
  std::string text;
  for (const SocketAddress& address : addresses) {
    if (!text.empty()) text += ',';
    text += address.to_string();
  }
  return text;
}

Result<std::vector<SocketAddress>> split_addresses(std::string_view text) {
  std::vector<SocketAddress> addresses;
  for (const std::string& part : split_at_commas(text)) {
    auto address = parse_address(part);
    if (!address.ok()) return address.status();
    if (addresses.size() == kMaxAdvertised) {
      return Status(StatusCode::invalid_argument, fmt::format("more than {} addresses in '{}'", kMaxAdvertised, text));
    }
    addresses.push_back(*address);
  }
  return addresses;
}

Result<std::vector<SocketAddress>> local_addresses(std::string_view interface_or_address) {
  // A numeric address is not looked up; bind() fails later if it is not one of this host.
  if (!interface_or_address.empty()) {
    const auto given = parse_host(interface_or_address);
    if (given.ok()) return std::vector<SocketAddress>{*given};
  }
  auto locals = list_interfaces();
  if (!locals.ok()) return locals.status();
  std::stable_sort(locals->begin(), locals->end(), [](const auto& a, const auto& b) { return a.badness() < b.badness(); });
  std::vector<SocketAddress> chosen;
  const auto choose = [&](auto&& fits) {
    for (const LocalAddress& local : *locals) {
      if (fits(local) && !local.address.is_link_local() && chosen.size() < kMaxAdvertised) chosen.push_back(local.address);
    }
  };
  if (!interface_or_address.empty()) {
    choose([&](const LocalAddress& local) { return local.interface == interface_or_address; });
  } else {
    choose([](const LocalAddress& local) { return !local.loopback; });
    if (chosen.empty()) choose([](const LocalAddress& local) { return local.loopback; });
  }
  if (chosen.empty()) {
    return Status(StatusCode::invalid_argument, fmt::format("no usable interface or address '{}' on this host; it has {}",
                                                            interface_or_address, describe(*locals)));
  }
  return chosen;
}

int bind_to(const Descriptor& socket, SocketAddress own) noexcept {
  own.set_port(0);
  const int on = 1;  // the port is chosen when both addresses are known, so that they do not run out
  static_cast<void>(::setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on));
  return ::bind(socket.get(), own.raw(), own.length()) == 0 ? 0 : errno;
}

}  // namespace shoal::tcp
