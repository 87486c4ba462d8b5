#include "transports/ucx/devices.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include <fmt/format.h>

namespace shoal::ucx {
namespace {

std::string numeric(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return {};
  std::array<char, NI_MAXHOST> text{};
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  const int result = ::getnameinfo(address, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return result == 0 ? text.data() : std::string();
}

std::string list_of(const std::vector<Interface>& available) {
  std::string text;
  for (const Interface& each : available) {
    if (!each.address.empty()) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", each.name, each.address);
  }
  return text.empty() ? "none" : text;
}

}  // namespace

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owned(list, ::freeifaddrs);
  std::vector<Interface> available;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
    available.push_back({entry->ifa_name, numeric(entry->ifa_addr)});
  return available;
}

Result<std::string> net_devices(const std::string& interface_or_address, const std::vector<Interface>& available,
                                const std::string& sysfs_root) {
  const auto found = std::find_if(available.begin(), available.end(), [&](const Interface& each) {
    return each.name == interface_or_address || each.address == interface_or_address;
  });
  if (found == available.end()) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("ucx: this host has no interface or address '{}' (SHOAL_HOST_ADDRESS, or else "
                              "SHOAL_SOCKET_IFNAME); it has {}",
                              interface_or_address, list_of(available)));
  }
  std::string devices = found->name;
  const std::filesystem::path folder = std::filesystem::path(sysfs_root) / "class/net" / found->name;
  int port = 0;  // of the card, from 0
  std::ifstream(folder / "dev_port") >> port;
  std::error_code none;
  for (const auto& card : std::filesystem::directory_iterator(folder / "device/infiniband", none))
    devices += fmt::format(",{}:{}", card.path().filename().string(), port + 1);
  return devices;
}

}  // namespace shoal::ucx
