// The ofi transport: ordered links over the unordered reliable datagrams of libfabric, on one or several network devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/rails/rail.h"
#include "transports/rails/rails.h"
#include "transports/transport.h"

namespace shoal {

/// Options of an ofi transport beside those of all links over rails. These may differ between ranks, except the number of
/// devices.
struct OfiOptions : rails::Options {
  std::string provider;              ///< "efa", "tcp;ofi_rxm"; empty: by capability
  std::vector<std::string> devices;  ///< by name ("eth0", "rdmap79s0-rdm") or numeric address, one rail each, at most 8; empty:
                                     ///< by capability
  std::string near;                  ///< where devices are not named: for sockets, the interface or address of this host
  std::vector<std::string> cards;    ///< where devices are not named: network cards to prefer, by the kernel's names
                                     ///< ("rdmap79s0")
  int share = 0;  ///< where none of `cards` exists: this rank takes the share-th of `shares` equal parts of all cards
  int shares = 1;
  std::shared_ptr<rails::Fabric> fabric;  ///< opens the rails; null: libfabric
};

/// Opens an ofi transport. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range; unsupported where libfabric is not installed, or has no suitable
/// provider (lists the available ones); system_error with the provider's text.
Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options);

/// What a provider offers, for `shoal doctor`.
struct OfiProvider {
  std::string name;
  std::string version;
  std::vector<std::string> devices;
  bool writes = false;  ///< can be used for one-sided writes
};
/// Providers with which a transport could be made. Errors: unsupported, with the reason.
Result<std::vector<OfiProvider>> ofi_providers();

/// Whether this machine has Amazon's EFA, by the devices under `sysfs_root` ("/sys"), and libfabric has the provider for it:
/// then ofi is faster than tcp. Cheap where there is no EFA.
bool ofi_has_efa(const std::string& sysfs_root);

}  // namespace shoal
