// Open MPI (or another MPI) as a backend to compare with.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// A backend over all processes started by mpirun, as `rank` of `size`. Like torch's own MPI backend, which its wheels lack,
/// it makes its calls one after the other in a separate thread, as blocking calls: MPI's best algorithms have no other form.
/// A process can create it at most once.
///
/// Supports all_reduce (sum), broadcast, all_gather and barrier, on contiguous CPU tensors. MPI has no deadlines: wait() has
/// no timeout, and mpirun ends all ranks if one dies. Thread rule: one thread. Errors: unsupported if this was built without
/// MPI, or MPI does not allow threads; invalid_argument if mpirun did not start the ranks; system_error with MPI's message.
Result<c10::intrusive_ptr<c10d::Backend>> make_mpi(int rank, int size);

/// The name and version of the MPI library, "Open MPI v4.1.4"; empty if built without MPI. May be called at any time.
std::string mpi_version();

}  // namespace shoal::train
