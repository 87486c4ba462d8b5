#include "bench/train/device.h"

#include <algorithm>
#include <string>

#include "bench/train/cuda.h"

namespace shoal::train {
namespace {

bool takes_part(const TrainOptions& options, const char* backend) {
  return std::ranges::find(options.replicas, backend, &ReplicaOptions::backend) != options.replicas.end();
}

/// The option or backend that trains only on the processor, as on the command line; empty if there is none.
std::string processor_only(const TrainOptions& options) {
  if (options.survives()) return "--on-failure shrink";  // undo and regrouping of ranks support only the processor
  for (const char* backend : {"gloo", "mpi"}) {
    if (takes_part(options, backend)) return backend;
  }
  return {};
}

}  // namespace

GpuWish gpu_wish(const TrainOptions& options) {
  if (options.device == "cuda" || takes_part(options, "nccl")) return GpuWish::always;
  if (options.device == "cpu" || !processor_only(options).empty()) return GpuWish::never;
  return GpuWish::if_there;
}

Status check_device(const TrainOptions& options) {
  if (gpu_wish(options) != GpuWish::always) return {};
  const std::string asks = options.device == "cuda" ? "--device cuda" : "--backend nccl";
  if (const std::string processor = processor_only(options); !processor.empty()) {
    return {StatusCode::invalid_argument,
            asks + ": " + processor +
                " trains only on the processor, so the times are not comparable with training on GPUs; use --backend "
                "shoal,nccl for GPUs, or --device cpu without nccl"};
  }
  if (options.device == "cpu")
    return {StatusCode::invalid_argument, "--device cpu: nccl trains only on GPUs; omit it, or use --device cuda"};
  return {};
}

Result<at::Device> choose_device(const Job& job, const TrainOptions& options) {
  const GpuWish wish = gpu_wish(options);
  if (wish == GpuWish::never) return at::Device(at::kCPU);
  const int gpu = job.control->local_rank();
  Status own;
  if (wish == GpuWish::if_there && !has_cuda_driver())  // saves most machines the seconds for loading CUDA's libraries
    own = Status(StatusCode::unsupported, "no NVIDIA driver");
  else
    own = use_gpu(gpu);
  std::uint8_t all_have = own.ok() ? 1 : 0;
  if (const Status agreed = job.control->all_reduce(&all_have, &all_have, 1, DataType::uint8, ReduceOp::min); !agreed.ok())
    return agreed;
  if (all_have != 0) return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  if (wish == GpuWish::if_there) return at::Device(at::kCPU);
  if (!own.ok()) return own;
  return Status(StatusCode::unsupported, "another rank has no GPU; see the message of that rank");
}

}  // namespace shoal::train
