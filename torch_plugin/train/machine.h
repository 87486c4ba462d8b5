// The machine and software that figures were measured with.
#pragma once

#include <nlohmann/json.hpp>

namespace shoal::train {

/// Cores that this process may use: its affinity and its cgroup's quota, whichever is less; at least 1.
int allowed_cores();

/// {"host", "cpu", "cores", "memory_gib", "kernel", "torch"}; null where unknown.
nlohmann::json describe_machine();

}  // namespace shoal::train
