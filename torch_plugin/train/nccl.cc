#include "torch_plugin/train/nccl.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/train/nccl_module.h"

namespace shoal::train {
namespace {

Status unsupported(const std::string& why) { return {StatusCode::unsupported, "nccl: " + why}; }

/// It stands in lib/, beside the bin/ of this program. Never closed: CUDA does not survive it.
Result<void*> open_module() {
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::filesystem::path path = program.parent_path().parent_path() / "lib" / "libshoal_train_nccl.so";
  if (!std::filesystem::exists(path, ignored)) {
    return unsupported(
        "this program was built without the headers of CUDA and NCCL (they come with PyTorch's wheels for CUDA)");
  }
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return unsupported(std::string("the CUDA part of PyTorch cannot be loaded: ") + ::dlerror());
  return handle;
}

}  // namespace

Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                                                    std::chrono::milliseconds timeout) {
  const Result<void*> module = open_module();
  if (!module.ok()) return module.status();
  const auto count_gpus = reinterpret_cast<CountGpus>(::dlsym(*module, kCountGpus));
  const auto make = reinterpret_cast<MakeNccl>(::dlsym(*module, kMakeNccl));
  if (count_gpus == nullptr || make == nullptr) return unsupported("its module is of another build of this program");
  int gpus = 0;
  std::string why_not;
  count_gpus(&gpus, &why_not);
  if (gpus == 0) return unsupported("it needs NVIDIA GPUs: " + why_not.substr(0, why_not.find('\n')));
  if (gpu >= gpus) {
    return unsupported("this is rank " + std::to_string(gpu) + " of its host, which has " + std::to_string(gpus) +
                       " GPUs: start at most one rank for each");
  }
  try {
    c10::intrusive_ptr<c10d::Backend> made;
    make(store, rank, size, gpu, timeout, &made);
    return made;
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, "nccl: " + torch::plain_message(error));
  }
}

}  // namespace shoal::train
