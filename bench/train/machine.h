// The machine and software that figures were measured with.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal::train {

/// Cores that this process may use: its affinity and its cgroup's quota, whichever is less; at least 1.
int allowed_cores();

/// What tells this machine's kernel from others'; the same for all containers and network namespaces of one machine.
std::string kernel_identity();

/// The cores that the affinity of this process allows, as text; the same for all processes with the same.
std::string cores_identity();

/// {"host", "cpu", "cores", "memory_gib", "kernel", "torch", "shoal", "open_mpi", "compiler"}; null where unknown or, as
/// Open MPI, not built in.
nlohmann::json describe_machine();

}  // namespace shoal::train
