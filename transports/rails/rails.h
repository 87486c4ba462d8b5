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

/// Options of links over rails. All ranks of a job must have the same values, except for `rank` and the options about a
/// rank's own memory.
struct Options {
  std::string transport = "ofi";         ///< result of name(), and begin of error messages
  std::size_t tile_bytes = 128 << 10;    ///< largest payload of a tile, 512 B .. 8 MiB
  std::size_t tiles_per_peer = 8;        ///< in flight to a peer on each rail: 2..64
  std::size_t stripe_bytes = 128 << 10;  ///< with several rails a larger tile is cut into pieces of at least half of this
  std::size_t write_from_bytes = 8192;   ///< larger tiles are written into the peer's memory where the rails can; 0 = none
  bool integrity = false;  ///< payloads have checksums from the start, and are copied; damaged tiles are retransmitted
  /// Memory that stays mapped as long as this process lives: lent tiles of at least lend_from_bytes are sent from there
  /// without a copy. Between processes of one host, over rails that redirect, this applies to any memory.
  std::span<std::byte> lasting_memory{};
  std::function<std::uint64_t()> lasting_changes{};  ///< changes when pages of that memory have been given back to the system
  std::size_t lend_from_bytes = 16 << 10;
  RegistrationLimits registrations{};  ///< of lasting memory, on each rail that needs them
  std::uint64_t job_id = 0;            ///< keeps jobs apart that reach each other by accident
  Key key;                             ///< authenticates the ranks of the job
  int rank = 0;
  int size = 1;                                                    ///< ranks of the job
  std::function<std::chrono::steady_clock::time_point()> clock{};  ///< for tests; empty: the system's clock
};

/// Errors: invalid_argument for options out of range.
Status check(const Options& options);
/// The highest number of completions that can wait on one of `rails` while no thread reads them.
std::size_t operations_of(const Options& options, std::span<const RailTraits> rails);
/// A transport over `rails`. Thread rule: that of Transport. Errors: unsupported where messages of the rails are too small;
/// system_error.
Result<std::unique_ptr<Transport>> make_transport(const Options& options, std::vector<std::unique_ptr<Rail>> rails);

}  // namespace shoal::rails
