// DeferredStatistics: batch normalisations update their running statistics once for a step, as for its whole batch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "torch_plugin/parallel/batch_norm/batch_norm_layers.h"
#include "torch_plugin/parallel/batch_norm/batch_norm_observer.h"
#include "torch_plugin/parallel/batch_norm/channel_moments.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// For one training step. While it exists, the batch normalisations of the chunks that are in training mode write mean and
/// variance of each call to tensors of their own: their buffers stay as they are, which the backwards of other microbatches may
/// have saved. add() after each call that counts; commit() after the last backward. Without commit() the step leaves no trace.
///
/// They normalize by microbatch all the same. Thread rule: one thread.
class DeferredStatistics {
 public:
  explicit DeferredStatistics(const std::vector<std::shared_ptr<Unit>>& chunks);
  ~DeferredStatistics();
  DeferredStatistics(const DeferredStatistics&) = delete;
  DeferredStatistics& operator=(const DeferredStatistics&) = delete;

  /// What a call has just written counts. Ignores calls of other modules.
  void add(const BatchNormCall& call);
  /// One update with the mean and the unbiased variance of all values, as for one batch.
  void commit();

 private:
  struct Deferred {
    BatchNormLayer layer;
    // What it had.
    at::Tensor running_mean, running_var, num_batches_tracked;
    std::optional<double> momentum;
    ChannelMoments moments;
  };

  std::map<const at::TensorImpl*, Deferred> layers_;  // by the mean to which their calls write
};

}  // namespace shoal::parallel
