// The device of a run: the processor, or one GPU per rank.
#pragma once

#include <c10/core/Device.h>

#include <shoal/status.h>

#include "bench/train/job.h"
#include "bench/train/options.h"

namespace shoal::train {

/// Whether the options require GPUs.
enum class GpuWish {
  never,     ///< --device cpu, or what trains only on the processor: gloo, mpi, --on-failure shrink
  if_there,  ///< --device auto and shoal alone
  always,    ///< --device cuda, or nccl
};
GpuWish gpu_wish(const TrainOptions& options);

/// ok, or invalid_argument if the options need the processor and GPUs at the same time; names the options to use instead.
Status check_device(const TrainOptions& options);

/// The device for this rank: GPU number local_rank() of its host, or the processor; the same kind on all ranks. Collective.
/// Errors, on all ranks: unsupported, with the reason, if GPUs are required and some rank has none; those of the
/// communicator.
Result<at::Device> choose_device(const Job& job, const TrainOptions& options);

}  // namespace shoal::train
