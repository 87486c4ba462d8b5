// Which of a host's network interfaces others are likely to reach it by.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace shoal {

/// The smaller, the better an address of this family on `interface` is for others to come by. Bridges that containers and
/// virtual machines hang on have the same address on many hosts: the last resort.
inline int interface_badness(std::string_view interface, int family) noexcept {
  constexpr std::array<std::string_view, 5> kBridges = {"docker", "br-", "virbr", "cni", "lxc"};
  const bool bridge =
      std::any_of(kBridges.begin(), kBridges.end(), [&](std::string_view prefix) { return interface.starts_with(prefix); });
  return (bridge ? 2 : 0) + (family == AF_INET6 ? 1 : 0);
}

}  // namespace shoal
