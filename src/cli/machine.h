// The machine that something was measured on.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace shoal {

/// {"cpu", "cores", "kernel", "memory_gib"} of this host; what cannot be found is null.
nlohmann::ordered_json describe_machine();

}  // namespace shoal
