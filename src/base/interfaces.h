// Rates a host's network interfaces by how likely other hosts can reach it there.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace shoal {

/// How unsuitable an address of this family on `interface` is for other hosts to connect to; 0 is best. Bridges of containers
/// and virtual machines have the same address on many hosts, so they are the last resort.
inline int interface_badness(std::string_view interface, int family) noexcept {
  constexpr std::array<std::string_view, 5> kBridges = {"docker", "br-", "virbr", "cni", "lxc"};
  const bool bridge =
      std::any_of(kBridges.begin(), kBridges.end(), [&](std::string_view prefix) { return interface.starts_with(prefix); });
  return (bridge ? 2 : 0) + (family == AF_INET6 ? 1 : 0);
}

}  // namespace shoal
