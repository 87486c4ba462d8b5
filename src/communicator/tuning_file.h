// The table of measured times: rank 0 reads it and publishes it to all ranks.
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

/// Publishes the part of rank 0's table that matches `topology` and `transports`, if there is one. The other ranks never read
/// the file: if it exists on one host only, or another host has an older one, ranks would choose differently. Collective.
/// `table` is used on rank 0 only. Errors: those of the exchange.
Result<std::optional<TunedShape>> agree_on_tuning(StartupExchange& exchange, int rank, const TuningTable& table,
                                                  const Topology& topology, const std::string& transports);

}  // namespace shoal
