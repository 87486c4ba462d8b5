// --profile-out: what each unit of the network costs, for `shoal partition`.
#pragma once

#include <cstdint>

#include <shoal/status.h>

#include "bench/train/data/dataset.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/options.h"
#include "src/pipeline/profile.h"

namespace shoal::train {

/// Measures the network for a microbatch of options.batch images of the size of `images`, on the job's device and with the
/// threads that torch uses now, and writes the profile to options.profile_out. Rank 0 does, while the other ranks wait.
/// Collective. Errors, on all ranks: unsupported for a precision other than fp32; system_error for a file that cannot be
/// written; those of parallel::profile().
Status write_profile(const Job& job, const models::ModelInfo& model, const data::Dataset& images, const TrainOptions& options);

/// What the units of the network cost for `microbatch` images, with the threads that torch uses now; unless `measures`, names
/// and sizes only. With a group, of this rank's slices; collective over it then, and on all of its ranks with the same
/// arguments. Errors: those of parallel::profile() and parallel::split_pairs().
Result<pipeline::Profile> describe_units(at::Device device, const models::ModelInfo& model, const data::Dataset& images,
                                         const TrainOptions& options, std::int64_t microbatch, bool measures,
                                         const parallel::LayerSlices::Group& group);

}  // namespace shoal::train
