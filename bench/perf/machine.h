// The machine of a measurement; a figure means nothing without it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace shoal::perf {

/// {"cpu", "cores", "kernel", "memory_gib", "compiler", "versions": {...}} of this host; unknown values are null. `versions`
/// is copied unchanged.
[[nodiscard]] nlohmann::ordered_json describe_machine(const nlohmann::ordered_json& versions);

}  // namespace shoal::perf
