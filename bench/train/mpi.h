// Open MPI (or another MPI) as a backend to compare with.
#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <shoal/status.h>

namespace shoal::train {

/// A backend over all processes that mpirun started, as `rank` of `size`. Like torch's own for MPI, which its wheels lack, it
/// makes its calls one after the other in a thread of its own, as blocking calls: MPI's best algorithms have no other form.
/// At most one exists in a process, once.
///
/// Serves all_reduce (sum), broadcast, all_gather and barrier, on contiguous CPU tensors. MPI knows no deadline: wait() waits
/// for ever, and mpirun ends all ranks when one dies. Thread rule: one thread. Errors: unsupported where this was built without
/// MPI, or MPI does not allow threads; invalid_argument where mpirun did not start the ranks; system_error with MPI's words.
Result<c10::intrusive_ptr<c10d::Backend>> make_mpi(int rank, int size);

/// What the MPI library calls itself, "Open MPI v4.1.4"; empty where this was built without. At any time.
std::string mpi_version();

}  // namespace shoal::train
