#include "transports/ofi/ofi.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "transports/ofi/libfabric.h"

namespace shoal {

Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options) {
  if (Status status = rails::check(options); !status.ok()) return status;
  std::shared_ptr<rails::Fabric> fabric = options.fabric;
  if (fabric == nullptr) {
    auto found = ofi::libfabric();
    if (!found.ok()) return found.status();
    fabric = std::move(*found);
  }
  rails::RailRequest request;
  request.provider = options.provider;
  request.devices = options.devices;
  request.near = options.near;
  request.cards = options.cards;
  request.share = options.share;
  request.shares = options.shares;
  request.peers = static_cast<std::size_t>(options.size);
  request.operations = [&options](std::span<const rails::RailTraits> rails) { return rails::operations_of(options, rails); };
  auto rails = fabric->open(request);
  if (!rails.ok()) return rails.status();
  return rails::make_transport(options, std::move(*rails));
}

Result<std::vector<OfiProvider>> ofi_providers() { return ofi::libfabric_providers(); }

bool ofi_has_efa(const std::string& sysfs_root) {
  // Loading libfabric takes a while, so it is not loaded where the host has no Amazon device with an RDMA driver.
  std::error_code none;
  bool device = false;
  for (const auto& entry : std::filesystem::directory_iterator(sysfs_root + "/bus/pci/devices", none)) {
    if (!std::filesystem::exists(entry.path() / "infiniband", none)) continue;
    std::string vendor;
    std::ifstream(entry.path() / "vendor") >> vendor;
    device |= vendor == "0x1d0f";
  }
  if (!device) return false;
  const auto providers = ofi_providers();
  return providers.ok() &&
         std::any_of(providers->begin(), providers->end(), [](const auto& each) { return each.name == "efa"; });
}

}  // namespace shoal
