// The table of measured times: rank 0 reads it and publishes it to all ranks.
#pragma once

#include <optional>
#include <string>

#include <shoal/status.h>

#include "src/selector/tuning.h"

namespace shoal {

/// Reads and checks the file at `path`. Errors: not_found or system_error for a file that cannot be read, else as
/// parse_tuning(); the message names the file.
Result<TuningTable> read_tuning_file(const std::string& path);

/// The text of the part of rank 0's table that matches `topology` and `transports`; empty if there is none. The other ranks
/// never read the file: if it exists on one host only, or another host has an older one, ranks would choose differently.
std::string tuning_text(const TuningTable& table, const Topology& topology, const std::string& transports);
/// Reads rank 0's text. Rank 0 does so, too: times are rounded in the text, and all ranks must have the same times.
Result<std::optional<TunedShape>> read_tuning(const std::string& text);

}  // namespace shoal
