// The machine that a result was measured on: a figure without it says nothing.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace shoal::perf {

/// {"cpu", "cores", "kernel", "memory_gib", "compiler", "versions": {...}} of this host; what cannot be found is null.
/// `versions` is taken over as it is.
[[nodiscard]] nlohmann::ordered_json describe_machine(const nlohmann::ordered_json& versions);

}  // namespace shoal::perf
