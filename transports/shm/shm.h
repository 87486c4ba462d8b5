// Transport between processes of one host through shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <shoal/status.h>

#include "transports/transport.h"

namespace shoal {

/// Options of one rank. Everything but `rank` must be the same on all ranks of the group; connect() checks it.
struct ShmOptions {
  int rank = 0;
  std::uint64_t job_id = 0;            ///< ranks of another job are refused
  std::size_t tile_bytes = 64 * 1024;  ///< largest payload of a tile: 1 byte .. 64 MiB
  int slots = 16;                      ///< tiles that fit between a sender and a receiver: 2 .. 4096
  /// Limit on the rings into which this rank sends. Beyond it a ring has two slots. May differ.
  std::size_t link_memory_bytes = std::size_t{256} << 20;
  std::size_t window_bytes = 200 * 1024;  ///< shared_window() of each rank, rounded up to a page; 0 = none; at most 1 GiB
  bool single_copy = true;  ///< copy straight between the memories of processes where the system permits it; may differ
};

/// Makes the transport of this rank. The memory is an unnamed file (memfd). The lowest rank of the group creates it, and it is
/// passed over Unix sockets down a tree of the ranks. So neither the size of /dev/shm nor leftovers of dead jobs matter.
///
/// The group may have up to kMaxHostRanks ranks, all of one user, on one host and in one network namespace (abstract Unix
/// sockets). Thread rule: that of Transport. Errors: invalid_argument for options out of range; system_error when descriptors
/// run out.
Result<std::unique_ptr<Transport>> make_shm_transport(const ShmOptions& options);

namespace shm {
class HostMemory;
}
/// The memory that the ranks of `transport`, which make_shm_transport() has made and which is connected, share for threads that
/// do not drive it. Once for each transport, which outlives it. Errors: system_error when descriptors run out.
Result<std::unique_ptr<shm::HostMemory>> open_host_memory(const Transport& transport);

/// Whether peers learn of the end of this process, however it ends: not where the system or a sandbox gives it no pidfd.
bool shm_peers_see_end();

}  // namespace shoal
