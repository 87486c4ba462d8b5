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

/// All of this host; one that has several addresses comes several times.
std::vector<Interface> interfaces();

/// UCX's names, joined by commas, for the one that has this name or address: "eth0", and for a card that the kernel describes
/// there ("/sys") as one of verbs "eth0,mlx5_0:1". Errors: invalid_argument, naming what there is.
Result<std::string> net_devices(const std::string& interface_or_address, const std::vector<Interface>& there,
                                const std::string& sysfs_root);

}  // namespace shoal::ucx
