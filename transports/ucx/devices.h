// Which network devices UCX may use, by the names that UCX gives them.
#pragma once

#include <string>
#include <vector>

#include <shoal/status.h>

namespace shoal::ucx {

/// A network interface of this host and one of its addresses, numeric; empty where it has none.
struct Interface {
  std::string name;
  std::string address;
};

/// All interfaces of this host; one with several addresses appears several times.
std::vector<Interface> interfaces();

/// UCX's device names, joined by commas, of the interface with this name or address: "eth0"; for a card that the kernel lists
/// as a verbs device under `sysfs_root` ("/sys"), "eth0,mlx5_0:1". Errors: invalid_argument, naming the interfaces that
/// exist.
Result<std::string> net_devices(const std::string& interface_or_address, const std::vector<Interface>& available,
                                const std::string& sysfs_root);

}  // namespace shoal::ucx
