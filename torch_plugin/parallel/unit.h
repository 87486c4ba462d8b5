// Unit: the smallest part of a model that model parallelism places on a rank.
#pragma once

#include <torch/nn/module.h>

namespace shoal::parallel {

/// A part of a model: one tensor in, one tensor out, each with the images in its first dimension. A stage of a pipeline is a
/// Unit as well: the units it is made of, one after the other.
///
/// Rules for forward(): it must not change its input in place, since the input is a leaf that another rank's output fills. It
/// is called for several microbatches before the first backward, so that it keeps nothing from one call to the next but
/// its buffers. Thread rule: one call at a time.
class Unit : public ::torch::nn::Module {
 public:
  virtual at::Tensor forward(at::Tensor input) = 0;
};

}  // namespace shoal::parallel
