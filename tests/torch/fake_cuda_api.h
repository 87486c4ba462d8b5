// The fake device of torch as a CUDA for shoal: its streams are the device's, its memory is the device's, its kernels run in
// the streams by the code of kernels/host_run.h. The program exports shoal_cuda_api(), which is all that libshoal.so needs to
// find it. Ranks are threads of one process, each on a device of its own.
#pragma once

#include <atomic>

namespace shoal::fake {

/// What this CUDA can do, for groups that are made from then on.
struct CudaBehaviour {
  std::atomic<bool> works{true};           ///< false: as a device that lacks what is needed
  std::atomic<bool> exports_memory{true};  ///< false: everything goes through the host's tiles
  std::atomic<bool> shared_device{true};   ///< false: a GPU for each rank, where one kernel does all of a small call
  std::atomic<bool> capturing{false};      ///< every stream is being captured
};
CudaBehaviour& cuda_behaviour();

/// Kernels and copies that streams have done for shoal.
int steps_for_shoal();

}  // namespace shoal::fake
