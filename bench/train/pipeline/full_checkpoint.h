// full.pt: a pipeline's whole network in one file, as training without a pipeline saves its checkpoints.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/train/data/dataset.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "torch_plugin/parallel/checkpoint/checkpoint.h"

namespace shoal::train {

/// Such a file, with what the manifest of a pipeline's checkpoint would say of the training.
struct FullCheckpoint {
  nlohmann::json about;  ///< settings, step, replicas, and course where it is known
  parallel::WholeTensors tensors;
};

/// Writes `checkpoint` of a network, which has made `step` steps, beside its manifest. `settings` are those of training without
/// a pipeline. Errors: those of parallel::read_tensors() and of writing.
Status write_full(const parallel::StoredCheckpoint& checkpoint, const models::ModelInfo& model, const data::Dataset& images,
                  nlohmann::json settings, std::int64_t step);

/// Reads the file on rank 0: what write_full() or a training without a pipeline has written. A batch of a pipeline is all that
/// one replica adds up for a step. Collective. Errors, the same on all ranks: those of load_checkpoint(); invalid_argument for
/// settings and a number of steps that no training has.
Result<FullCheckpoint> read_full(const Job& job, const std::string& path, const data::Dataset& images);

}  // namespace shoal::train
