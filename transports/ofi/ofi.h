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

/// What an ofi transport needs to know beside what all links over rails do. These may differ from rank to rank, but not the
/// number of devices.
struct OfiOptions : rails::Options {
  std::string provider;              ///< "efa", "tcp;ofi_rxm"; empty: by capability
  std::vector<std::string> devices;  ///< by name ("eth0", "rdmap79s0-rdm") or numeric address, one rail each, at most 8; empty:
                                     ///< by capability
  std::string near;                  ///< where devices are not named: the interface or address of this host for sockets
  std::vector<std::string> cards;    ///< likewise, of network cards, by the names that the kernel gives them ("rdmap79s0")
  int share = 0;  ///< of cards, where those are not there, this rank takes the share-th of `shares` equal parts
  int shares = 1;
  std::shared_ptr<rails::Fabric> fabric;  ///< where rails come from; null: libfabric
};

/// Opens an ofi transport. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range; unsupported where libfabric is not there, or has no provider that will do
/// (names what there is); system_error in the provider's words.
Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options);

/// What a provider offers, for `shoal doctor`.
struct OfiProvider {
  std::string name;
  std::string version;
  std::vector<std::string> devices;
  bool writes = false;  ///< can be used for one-sided writes
};
/// Those with which a transport could be made. Errors: unsupported, saying why there are none.
Result<std::vector<OfiProvider>> ofi_providers();

/// Whether the machine whose devices the kernel describes there ("/sys") has Amazon's EFA and libfabric its provider: there ofi
/// is better than tcp. Cheap where it has not.
bool ofi_has_efa(const std::string& sysfs_root);

}  // namespace shoal
