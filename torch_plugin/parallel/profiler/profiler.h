// The profiler: what each unit of a chain costs for one microbatch.
#pragma once

#include <torch/torch.h>

#include <shoal/status.h>

#include "src/pipeline/profile.h"
#include "torch_plugin/parallel/chain/chain.h"

namespace shoal::parallel {

struct ProfileOptions {
  int warm_ups = 2;  ///< forwards and backwards of the whole chain that are not measured
  int runs = 5;      ///< that are; times are their medians
};

/// Measures each unit for `microbatch`: a tensor as in training, on the device of the parameters, with the images in its first
/// dimension. The modules run in the mode in which they are (see Module::train), with as many threads as torch uses now;
/// parameters, buffers, gradients, generators and modes are afterwards what they were. Call it before DataParallel takes the
/// parameters, whose hooks would see the backwards.
///
/// Units run behind each other, cut by detached leaves as between stages. Each time includes a synchronisation of the device.
/// Backwards add to gradients that exist, as all but the first microbatch of a step do. `stash_bytes` are those that a unit's
/// forward allocates and that are still allocated when it returns, while its input is kept: the input belongs to the stash of
/// the unit before. `workspace_bytes` is measured in the same run. `channels` is the microbatch's second dimension. The caller
/// fills in `model`, `classes` and `machine`.
///
/// Errors: invalid_argument: options out of range; a microbatch without images; those of probe(); a unit whose backward throws
/// or gives its input or a parameter no gradient.
Result<pipeline::Profile> profile(const Chain& chain, const at::Tensor& microbatch, const ProfileOptions& options = {});

}  // namespace shoal::parallel
