// StepOutput: one value for each microbatch of a step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace shoal::parallel {

/// The losses or outputs of a step, equal on all ranks of the pipeline; on the CPU, without a graph. A value.
class StepOutput {
 public:
  /// No step: rank 0 has called end().
  StepOutput() = default;
  /// outputs[i] belongs to images[i] images. Precondition: as many of each, at least one.
  StepOutput(std::vector<at::Tensor> outputs, std::vector<std::int64_t> images);

  /// Whether rank 0 has ended the steps; there are no outputs then, and the methods below throw c10::ValueError.
  [[nodiscard]] bool ended() const { return outputs_.empty(); }
  /// One tensor for each microbatch, in their order.
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const { return outputs_; }
  /// Images of each microbatch.
  [[nodiscard]] const std::vector<std::int64_t>& images() const { return images_; }

  /// The mean over the images of the batch: output i counts b_i / B. Outputs of one shape.
  [[nodiscard]] at::Tensor reduce_mean() const;
  /// The sum of the outputs. Outputs of one shape.
  [[nodiscard]] at::Tensor reduce_sum() const;
  /// The outputs one after the other along the first dimension; scalars become a vector.
  [[nodiscard]] at::Tensor concat() const;
  /// The outputs along a new first dimension. Outputs of one shape.
  [[nodiscard]] at::Tensor stack() const;

 private:
  void check_same_shape(const char* call) const;

  std::vector<at::Tensor> outputs_;
  std::vector<std::int64_t> images_;
};

}  // namespace shoal::parallel
