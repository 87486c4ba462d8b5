// The ofi transport: ordered links over the unordered reliable datagrams of libfabric, on one or several network devices.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/trust/proof.h"
#include "transports/transport.h"

namespace shoal {

namespace ofi {
class Fabric;
}

/// What an ofi transport needs to know. All ranks of a job must agree on everything but `devices`, `near`, `share`,
/// `fabric` and `rank`.
struct OfiOptions {
  std::string provider;  ///< "efa", "tcp;ofi_rxm"; empty: by capability
  std::vector<std::string>
      devices;       ///< by name ("eth0", "rdmap79s0-rdm") or numeric address, one rail each, at most 8; empty: by capability
  std::string near;  ///< where devices are not named: an interface or address of this host to prefer
  int share = 0;     ///< of cards that are not named this rank takes the share-th of `shares` equal parts
  int shares = 1;
  std::size_t tile_bytes = 128 << 10;    ///< largest payload of a tile, 512 B .. 8 MiB
  std::size_t tiles_per_peer = 8;        ///< under way to a peer: 2..64
  std::size_t stripe_bytes = 128 << 10;  ///< with several rails a larger tile is cut into pieces of at least half of this
  std::size_t write_from_bytes = 8192;   ///< larger tiles are written into the peer's memory where the provider can do so
  std::uint64_t job_id = 0;              ///< tells this job's ranks from others by accident
  Key key;                               ///< tells them from strangers on purpose
  int rank = 0;
  int size = 1;                                                  ///< ranks of the job
  std::shared_ptr<ofi::Fabric> fabric;                           ///< where rails come from; null: libfabric
  std::function<std::chrono::steady_clock::time_point()> clock;  ///< for tests; empty: the system's
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

}  // namespace shoal
