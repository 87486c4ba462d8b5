// The report of trainings, a page and pictures.
#pragma once

#include <string>
#include <vector>

namespace shoal::train {

/// Runs page/page.py with these arguments in place of this program. Returns, with exit status 1 after one clear message, only
/// where there is no Python.
int make_page(const std::vector<std::string>& arguments);

}  // namespace shoal::train
