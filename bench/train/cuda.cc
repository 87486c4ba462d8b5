#include "bench/train/cuda.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace shoal::train {
namespace {

Status unsupported(const std::string& why) {
  return {StatusCode::unsupported, "no usable GPU: " + why + " (--device cpu, with shoal, gloo or mpi, needs none)"};
}

}  // namespace

/// The module is in lib/, beside the bin/ of this program. Never closed: CUDA does not support being unloaded.
Result<CudaModule> open_cuda() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path path = program.parent_path().parent_path() / "lib" / "libshoal_train_nccl.so";
  if (!std::filesystem::exists(path, ignored)) {
    return unsupported(
        "this program was built without the headers of CUDA and NCCL, which come with PyTorch's wheels for CUDA");
  }
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unsupported(std::string("the CUDA part of PyTorch cannot be loaded: ") + ::dlerror());
  const CudaModule module{.count_gpus = reinterpret_cast<CountGpus>(::dlsym(handle, kCountGpus)),
                          .make_nccl = reinterpret_cast<MakeNccl>(::dlsym(handle, kMakeNccl)),
                          .nccl_version = reinterpret_cast<NcclVersion>(::dlsym(handle, kNcclVersion))};
  if (module.count_gpus == nullptr || module.make_nccl == nullptr || module.nccl_version == nullptr)
    return unsupported("libshoal_train_nccl.so is from another build of this program");
  return module;
}

Status use_gpu(int gpu) {
  const Result<CudaModule> module = open_cuda();
  if (!module.ok()) return module.status();
  int gpus = 0;
  std::string why_not;
  module->count_gpus(&gpus, &why_not);
  if (gpus == 0) return unsupported("torch found none: " + why_not.substr(0, why_not.find('\n')));
  if (gpu >= gpus) {
    return unsupported("this is rank " + std::to_string(gpu) + " of its host, which has " + std::to_string(gpus) +
                       " GPUs; start at most one rank per GPU");
  }
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice({at::kCUDA, static_cast<c10::DeviceIndex>(gpu)});
  return {};
}

bool has_cuda_driver() { return ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr; }

}  // namespace shoal::train
