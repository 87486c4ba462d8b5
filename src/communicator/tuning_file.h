// The table of measured times: read by one rank, known to all.
#pragma once

#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/join/startup_exchange.h"
#include "src/selector/tuning.h"

namespace shoal {

/// Reads and checks the file at `path`. Errors: not_found or system_error for a file that cannot be read, else as
/// parse_tuning(); the message names the file.
Result<TuningTable> read_tuning_file(const std::string& path);

/// Tells every rank which part of rank 0's table to choose by, if any of it matches `topology` and `transports`. Ranks never
/// read the file themselves: where it lies on one host only, or is an older one on another, they would choose differently.
/// Collective. `table` counts on rank 0 only. Errors: those of the exchange.
Result<std::optional<TunedShape>> agree_on_tuning(StartupExchange& exchange, int rank, const TuningTable& table,
                                                  const Topology& topology, const std::string& transports);

}  // namespace shoal
