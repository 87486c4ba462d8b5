#include "bench/train/nccl.h"

#include "bench/train/cuda.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {

Result<c10::intrusive_ptr<c10d::Backend>> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int gpu,
                                                    std::chrono::milliseconds timeout) {
  const Result<CudaModule> module = open_cuda();
  if (!module.ok()) return module.status();
  try {
    c10::intrusive_ptr<c10d::Backend> made;
    module->make_nccl(store, rank, size, gpu, timeout, &made);
    return made;
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, "nccl: " + torch::plain_message(error));
  }
}

}  // namespace shoal::train
