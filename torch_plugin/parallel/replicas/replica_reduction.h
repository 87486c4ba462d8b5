// ReplicaReduction: the gradients of a rank's stages, averaged over the replicas of its pipeline by DataParallel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/parallel/runtime/gradient_reduction.h"
#include "torch_plugin/parallel/unit.h"

namespace shoal::parallel {

/// Sizes of the buckets in which gradients travel, see ddp::DataParallelOptions.
struct BucketSizes {
  std::optional<double> bucket_mib = std::nullopt;
  double first_bucket_mib = 1;
};

/// Microbatches add to the gradients of their stage. The backward of the last one fills the buckets of torch's reducer, each of
/// which starts its all-reduce when it is full; no backward waits for it. So a stage reduces while earlier stages, to which its
/// gradient has gone, still compute. The gradients are averages when finish_step() returns, with the same bits on all replicas.
///
/// Parameters and buffers start as those of replica 0, the group's first rank. Each replica keeps its own running statistics of
/// batch normalisation, until synchronize_buffers(). Gradients are views of the buckets after the first step: clear them with
/// clear_gradients(), which keeps them so and needs no second copy.
///
/// Collective over the group: all replicas make the same calls in the same order, which the static programs of a pipeline
/// give. All replicas must have as many images in a step, because each counts the same. Thread rule: one thread.
class ReplicaReduction final : public GradientReduction {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  /// `chunks`: the stages of this rank; `replicas`: the ranks that have the same stages. Throws c10::ValueError for a stage
  /// without a parameter that requires a gradient; the errors of the group, for replicas whose parameters differ in shape.
  ReplicaReduction(const std::vector<std::shared_ptr<Unit>>& chunks, Group replicas, const BucketSizes& sizes = {});
  /// Aborts what is still in flight.
  ~ReplicaReduction() override;

  void begin_step(std::int64_t images) override;
  void before_last_backward(int chunk) override;
  /// Throws c10::ValueError on every replica, with the numbers, if the replicas had different numbers of images; with the
  /// numbers of bytes, if a parameter that requires a gradient got none from the last microbatch.
  void finish_step() override;
  void abort(const std::string& reason) noexcept override;

  /// Sets the gradients to zero, or leaves them undefined before the first step.
  void clear_gradients();
  /// Sets the buffers to those of replica 0, for evaluation and before they are saved.
  void synchronize_buffers();

 private:
  c10::intrusive_ptr<c10::ivalue::Future> start(c10d::GradBucket& bucket);
  void check_images() const;
  void check_gradients() const;

  const std::vector<std::shared_ptr<Unit>> chunks_;
  const Group replicas_;
  std::vector<std::unique_ptr<ddp::DataParallel>> averages_;  // of each chunk
  std::vector<c10::intrusive_ptr<c10d::Work>> in_flight_;     // in this step
  std::size_t bytes_ = 0;                                     // of the buckets in this step
  std::vector<at::Tensor> images_;                            // of each replica in this step
};

}  // namespace shoal::parallel
