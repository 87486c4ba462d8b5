// The fake device of torch as a CUDA for shoal: it uses the device's streams and memory, and its kernels run on the streams by
// kernels/host_run.h. libshoal.so finds it by shoal_cuda_api(), which the program exports. Ranks are threads of one process,
// each with its own device.
#pragma once

#include <atomic>

namespace shoal::fake {

/// The features of the fake CUDA, for groups that are made later.
struct CudaBehaviour {
  std::atomic<bool> works{true};           ///< false: the device lacks a required feature
  std::atomic<bool> exports_memory{true};  ///< false: calls use tiles in host memory
  std::atomic<bool> shared_device{true};   ///< false: each rank has its own GPU, and one kernel makes a small call
  std::atomic<bool> capturing{false};      ///< true: every stream is being captured into a graph
};
CudaBehaviour& cuda_behaviour();

/// Kernels and copies that streams have run for shoal.
int steps_for_shoal();

}  // namespace shoal::fake
