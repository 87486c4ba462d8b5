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

/// Options of a TCP transport. All ranks of a job must have the same values, except for the first three (the number of rails
/// is the same) and `rank`.
struct TcpOptions {
  /// Where to listen and what to advertise: a numeric address ("10.0.0.3", "fd00::3"), an interface ("eth0"), or empty for
  /// every usable address of this host, among which the peers pick the first that they reach. It listens on these addresses and
  /// no others.
  std::string interface_or_address;
  /// Instead of that, to share the load among several networks: one address or interface for each, in the same order on every
  /// rank. The sockets to a peer use them in turn, so there should be at least as many sockets.
  std::vector<std::string> rails{};
  std::uint16_t port = 0;              ///< to listen on; 0 = any free one
  int sockets_per_peer = 2;            ///< 1..16
  std::size_t tile_bytes = 128 << 10;  ///< largest payload of a tile, 64 B .. 16 MiB
  std::size_t tiles_per_socket = 4;    ///< room to receive, in tiles of the largest size; 1..64
  bool integrity = false;              ///< payloads have checksums from the start; damaged tiles are retransmitted
  bool encryption = false;             ///< all data after the handshake is encrypted and authenticated, which includes
                                       ///< integrity
  std::size_t lend_from_bytes =
      32 << 10;  ///< of what is lent: less is copied sooner than it is kept track of; each rank its own
  /// A peer whose host has been silent for this long is lost; 5 s .. 10 days. Each rank its own.
  std::chrono::milliseconds lost_after{30'000};
  /// Limit for the memory in the buffers of all links. A rank that has more returns what holds no data to the system: within a
  /// second, or at once beyond twice the limit. 0: none. Each rank its own.
  std::size_t link_memory_bytes = 0;
  bool packing = false;      ///< payloads are packed from the start where that makes them smaller; each rank its own
  std::uint64_t job_id = 0;  ///< keeps jobs apart that reach each other by accident
  Key key;                   ///< authenticates the ranks of the job
  int rank = 0;
  int size = 1;  ///< ranks of the job
};

/// Whether this processor has instructions for checksums and for packing.
bool tcp_check_sums_are_fast() noexcept;
bool tcp_packing_is_fast() noexcept;

/// Opens a TCP transport that listens for peers. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range and for an unknown interface or address (lists those that exist);
/// system_error where the port is taken or descriptors run out.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TcpOptions& options);

}  // namespace shoal
