// --profile-out: what each unit of the network costs, for `shoal partition`.
#pragma once

#include <cstdint>
#include <vector>

#include <shoal/status.h>

#include "bench/train/data/dataset.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "src/pipeline/profile.h"
#include "torch_plugin/parallel/runtime/microbatches.h"
#include "torch_plugin/parallel/tensor/layer_slices.h"

namespace shoal::train {

/// Measures the network for a microbatch of options.batch images of the size of `images`, on the job's device and with the
/// threads that torch uses now, and writes the profile to options.profile_out. Rank 0 does, while the other ranks wait.
/// Collective. Errors, on all ranks: unsupported for a precision other than fp32; system_error for a file that cannot be
/// written; those of parallel::profile().
Status write_profile(const Job& job, const models::ModelInfo& model, const data::Dataset& images, const TrainOptions& options);

/// What is asked of the units of a network.
struct UnitsRequest {
  std::int64_t microbatch = 0;                     ///< images for which they cost what they cost
  bool measures = true;                            ///< else names, sizes and shapes only
  parallel::LayerSlices::Group group = {};         ///< of the ranks that share layers; null: they are whole
  std::vector<parallel::Microbatches> steps = {};  ///< of the training, which batch normalisations must allow
};

/// What the units of the network cost, with the threads that torch uses now. With a group, of this rank's slices; collective
/// over it then, and on all of its ranks with the same arguments. Errors: those of parallel::profile(), split_pairs() and
/// check_values().
Result<pipeline::Profile> describe_units(at::Device device, const models::ModelInfo& model, const data::Dataset& images,
                                         const TrainOptions& options, const UnitsRequest& request);

}  // namespace shoal::train
