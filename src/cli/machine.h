// A description of the machine on which a measurement is made.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace shoal {

/// {"cpu", "cores", "kernel", "memory_gib"} of this host; unknown values are null.
nlohmann::ordered_json describe_machine();

}  // namespace shoal
