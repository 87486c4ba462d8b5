#include "transports/ofi/ofi.h"

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
  request.share = options.share;
  request.shares = options.shares;
  request.peers = static_cast<std::size_t>(options.size);
  request.operations = rails::operations_of(options);
  auto rails = fabric->open(request);
  if (!rails.ok()) return rails.status();
  return rails::make_transport(options, std::move(*rails));
}

Result<std::vector<OfiProvider>> ofi_providers() { return ofi::libfabric_providers(); }

}  // namespace shoal
