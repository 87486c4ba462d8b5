// What the readers of JSON files share: reading a file, and where broken JSON ends.
#pragma once

#include <string>
#include <string_view>

#include <shoal/status.h>
#include <nlohmann/json.hpp>

namespace shoal::pipeline {

using Json = nlohmann::ordered_json;

/// The text of a file of at most 16 MiB. Errors: system_error; invalid_argument for a larger one. `what` it is: "profile".
Result<std::string> read_text(const std::string& path, std::string_view what);

/// The object in `json`. Error: invalid_argument that names `origin` and the last key before the fault.
Result<Json> parse_object(std::string_view json, std::string_view origin, std::string_view what);

}  // namespace shoal::pipeline
