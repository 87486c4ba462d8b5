// Ordered links over any rails: what the transports ofi and ucx have in common.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/trust/proof.h"
#include "transports/rails/rail.h"
#include "transports/rails/registrations.h"
#include "transports/transport.h"

namespace shoal::rails {

/// What links over rails need to know. All ranks of a job must agree on everything but `rank` and what
/// concerns its own memory.
struct Options {
  std::string transport = "ofi";         ///< what name() returns and errors begin with
  std::size_t tile_bytes = 128 << 10;    ///< largest payload of a tile, 512 B .. 8 MiB
  std::size_t tiles_per_peer = 8;        ///< under way to a peer by each rail: 2..64
  std::size_t stripe_bytes = 128 << 10;  ///< with several rails a larger tile is cut into pieces of at least half of this
  std::size_t write_from_bytes = 8192;   ///< larger tiles are written into the peer's memory where the rails can; 0 = none
  bool integrity = false;  ///< payloads have check sums from the start, and are copied; what was changed on the way comes again
  /// Memory that stays mapped as long as this process: what is lent from there is sent where it lies, from lend_from_bytes on.
  /// Between processes of one host so is what lies anywhere, over rails that redirect.
  std::span<std::byte> lasting_memory{};
  std::function<std::uint64_t()> lasting_changes{};  ///< another number when pages of it have been given back to the system
  std::size_t lend_from_bytes = 16 << 10;
  RegistrationLimits registrations{};  ///< of lasting memory, on each rail that needs them
  std::uint64_t job_id = 0;            ///< tells this job's ranks from others by accident
  Key key;                             ///< tells them from strangers on purpose
  int rank = 0;
  int size = 1;                                                    ///< ranks of the job
  std::function<std::chrono::steady_clock::time_point()> clock{};  ///< for tests; empty: the system's
};

/// Errors: invalid_argument for options out of range.
Status check(const Options& options);
/// The most completions that can wait on one of `rails` while nobody reads them.
std::size_t operations_of(const Options& options, std::span<const RailTraits> rails);
/// A transport over `rails`. Thread rule: that of Transport. Errors: unsupported where the rails take too little; system_error.
Result<std::unique_ptr<Transport>> make_transport(const Options& options, std::vector<std::unique_ptr<Rail>> rails);

}  // namespace shoal::rails
