// Automatic partitioning: the ranks of a pipeline cut a chain alike.
#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

#include <shoal/communicator.h>
#include <shoal/status.h>

#include "src/pipeline/partitioner.h"
#include "torch_plugin/parallel/chain/chain.h"

namespace shoal::parallel {

/// The best partition of `chain` into the stages of a pipeline over `communicator`: rank 0 measures the units, and every rank
/// cuts by what rank 0 has measured. `microbatch`: images as in training, read on rank 0 only. The request's `ranks` is
/// replaced by the size of the communicator; the rest is equal on all ranks, as is the chain. Collective. Thread rule: one
/// thread.
///
/// Errors, the same on all ranks: those of profile() on rank 0, and of pipeline::partition(); mismatch for a chain that has
/// other units than that of rank 0 on some rank: that names the rank and a unit; those of a broadcast.
Result<pipeline::Partition> partition_chain(const Chain& chain, const at::Tensor& microbatch, Communicator& communicator,
                                            pipeline::PartitionRequest request);

/// The stages of `rank` in a pipeline of `ranks`, for PipelineModel: rank, rank + ranks, ... Units recompute as the partition
/// says; whole stages do by PipelineOptions. Errors: those of Chain::stage();
/// invalid_argument for a partition whose stages the ranks do not divide.
Result<std::vector<std::shared_ptr<Unit>>> make_stages(const Chain& chain, const pipeline::Partition& partition, int rank,
                                                       int ranks);

}  // namespace shoal::parallel
