// The TCP transport: one ordered link to each peer, made of several sockets that share its tiles by pulling them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/trust/proof.h"
#include "transports/transport.h"

namespace shoal {

/// What a TCP transport needs to know. All ranks of a job must agree on everything but the first three (the
/// number of rails is the same) and `rank`.
struct TcpOptions {
  /// Where to listen and what to advertise: a numeric address ("10.0.0.3", "fd00::3"), an interface ("eth0"), or empty for
  /// every usable address of this host, among which the peers pick the first that they reach. It listens on these addresses and
  /// no others.
  std::string interface_or_address;
  /// Instead of that, to share the load among several networks: one address or interface for each, in the same order on every
  /// rank; the sockets to a peer go round them, so that there should be at least as many.
  std::vector<std::string> rails{};
  std::uint16_t port = 0;              ///< to listen on; 0 = any free one
  int sockets_per_peer = 2;            ///< 1..16
  std::size_t tile_bytes = 128 << 10;  ///< largest payload of a tile, 64 B .. 16 MiB
  std::size_t tiles_per_socket = 4;    ///< room to receive, in tiles of the largest size; 2..64
  bool integrity = false;              ///< payloads have check sums from the start; what was changed on the way is sent again
  bool encryption = false;             ///< nobody on the way can read or change anything; includes what integrity does
  std::size_t lend_from_bytes =
      32 << 10;  ///< of what is lent: less is copied sooner than it is kept track of; each rank its own
  /// A peer whose host has been silent for so long is lost; 5 s .. 10 days. Each rank its own.
  std::chrono::milliseconds lost_after{30'000};
  bool packing = false;      ///< payloads are packed from the start where that makes them smaller; each rank its own
  std::uint64_t job_id = 0;  ///< tells this job's ranks from others by accident
  Key key;                   ///< tells them from strangers on purpose
  int rank = 0;
  int size = 1;  ///< ranks of the job
};

/// This processor has instructions for them.
bool tcp_check_sums_are_fast() noexcept;
bool tcp_packing_is_fast() noexcept;

/// Opens a TCP transport that listens for peers. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range and for an unknown interface or address (lists those that exist);
/// system_error where the port is taken or descriptors run out.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options);

}  // namespace shoal
