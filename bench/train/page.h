// The report of trainings, a page and pictures.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// Runs page/page.py with these arguments in place of this program. Returns, with exit status 1 after one clear message, only
/// where there is no Python.
int make_page(const std::vector<std::string>& arguments);

/// Draws `results`, an object as --json writes it, by page/page.py as the SVG file `path`. Errors: system_error where there is
/// no Python, or it fails, which it has then said on standard error.
Status draw_plot(const nlohmann::json& results, const std::string& path);

}  // namespace shoal::train
