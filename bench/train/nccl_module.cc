// A separately loaded module, so that shoal_train itself starts without CUDA.
#include <string>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>  // and with it nccl.h

#include "bench/train/nccl_module.h"

extern "C" void shoal_train_count_gpus(int* gpus, std::string* why_not) {
  try {
    *gpus = c10::cuda::device_count_ensure_non_zero();
  } catch (const c10::Error& error) {
    *gpus = 0;
    *why_not = error.what_without_backtrace();
  }
}

extern "C" void shoal_train_nccl_version(std::string* version) {
  *version = std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) + "." + std::to_string(NCCL_PATCH);
}

extern "C" void shoal_train_make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                                      std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Backend>* made) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(gpu));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  *made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, std::move(options));
}
