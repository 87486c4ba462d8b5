// Draws a result file with plot.py.
#pragma once

#include <string>

#include <shoal/status.h>

namespace shoal::perf {

/// Draws the results in `json_path` into `svg_path` with the first Python that has matplotlib: that of the torch environment
/// in the cache folder, else python3. Errors: unsupported if there is none, system_error if the script fails.
Status draw(const std::string& json_path, const std::string& svg_path);

}  // namespace shoal::perf
