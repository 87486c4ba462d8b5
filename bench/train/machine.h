// The machine and software of a measurement.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal::train {

/// Cores that this process may use: its affinity and its cgroup's quota, whichever is less; at least 1.
int allowed_cores();

/// A string that identifies this machine's running kernel; the same for all containers and network namespaces of one machine.
std::string kernel_identity();

/// The cores that the affinity of this process allows, as text; equal for all processes with the same affinity.
std::string cores_identity();

/// {"host", "cpu", "cores", "memory_gib", "kernel", "torch", "shoal", "open_mpi", "compiler"}; null if unknown or, for Open
/// MPI, not built in.
nlohmann::json describe_machine();

}  // namespace shoal::train
