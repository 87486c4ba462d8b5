// The report of trainings: a page and pictures.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// Runs page/page.py with these arguments in place of this program. Returns only if there is no Python, with exit status 1
/// after one message.
int make_page(const std::vector<std::string>& arguments);

/// Draws `results`, an object as in --json, with page/page.py as the SVG file `path`. Errors: system_error if there is no
/// Python, or if the script fails, which then has printed its error.
Status draw_plot(const nlohmann::json& results, const std::string& path);

}  // namespace shoal::train
