// Where a run trains: on the processor, or on a GPU a rank.
#pragma once

#include <c10/core/Device.h>

#include <shoal/status.h>

#include "bench/train/job.h"
#include "bench/train/options.h"

namespace shoal::train {

/// What the options say of GPUs.
enum class GpuWish {
  never,     ///< --device cpu, or something takes part that trains on the processor only: gloo, mpi, --on-failure shrink
  if_there,  ///< --device auto and shoal alone
  always,    ///< --device cuda, or nccl
};
GpuWish gpu_wish(const TrainOptions& options);

/// Ok, or invalid_argument where options need the processor and GPUs at once; says what to ask for instead.
Status check_device(const TrainOptions& options);

/// The device for this rank: GPU number local_rank() of its host, or the processor; the same kind on all ranks. Collective.
/// Errors, on all ranks: unsupported, with the reason, where a GPU is wished always and some rank has none; the communicator's.
Result<at::Device> choose_device(const Job& job, const TrainOptions& options);

}  // namespace shoal::train
