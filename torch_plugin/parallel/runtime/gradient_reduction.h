// GradientReduction: what a training step does with the gradients of stages that have replicas.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::parallel {

/// Averages the gradients of a rank's stages over their replicas, while other stages of the pipeline still compute. Its calls
/// throw what its group throws; the step then fails with the place. Thread rule: the thread of the step.
class GradientReduction {
 public:
  GradientReduction() = default;
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;
  virtual ~GradientReduction() = default;

  /// Before the first forward of a step of `images` images.
  virtual void begin_step(std::int64_t images) = 0;
  /// Before the backward of the last microbatch through chunk `chunk` of this rank: the gradients that it completes may be
  /// sent. The backward must not wait for other ranks.
  virtual void before_last_backward(int chunk) = 0;
  /// After the last action of the rank: the gradients are averages when it returns.
  virtual void finish_step() = 0;
  /// The step failed on this rank: the replicas must not wait for it. Does not wait and does not throw.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace shoal::parallel
