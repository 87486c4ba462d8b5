#include "torch_plugin/parallel/runtime/step_output.h"

namespace shoal::parallel {

StepOutput::StepOutput(std::vector<at::Tensor> outputs, std::vector<std::int64_t> images)
    : outputs_(std::move(outputs)), images_(std::move(images)) {
  TORCH_CHECK_VALUE(!outputs_.empty() && outputs_.size() == images_.size(), "StepOutput: ", outputs_.size(), " outputs of ",
                    images_.size(), " microbatches");
}

void StepOutput::check_same_shape(const char* call) const {
  TORCH_CHECK_VALUE(!ended(), "StepOutput.", call, ": no step, because rank 0 has ended them; look at ended() first");
  for (std::size_t i = 1; i < outputs_.size(); ++i) {
    TORCH_CHECK_VALUE(outputs_[i].sizes() == outputs_[0].sizes(), "StepOutput.", call, ": the output of microbatch ", i,
                      " has the shape ", outputs_[i].sizes(), ", that of microbatch 0 ", outputs_[0].sizes(),
                      "; concat() takes different numbers of images");
  }
}

at::Tensor StepOutput::reduce_mean() const {
  check_same_shape("reduce_mean");
  double batch = 0;
  for (const std::int64_t images : images_) batch += static_cast<double>(images);
  at::Tensor mean = outputs_[0] * (static_cast<double>(images_[0]) / batch);
  for (std::size_t i = 1; i < outputs_.size(); ++i) mean += outputs_[i] * (static_cast<double>(images_[i]) / batch);
  return mean;
}

at::Tensor StepOutput::reduce_sum() const {
  check_same_shape("reduce_sum");
  at::Tensor sum = outputs_[0].clone();
  for (std::size_t i = 1; i < outputs_.size(); ++i) sum += outputs_[i];
  return sum;
}

at::Tensor StepOutput::concat() const {
  TORCH_CHECK_VALUE(!ended(), "StepOutput.concat: no step, because rank 0 has ended them; look at ended() first");
  return outputs_[0].dim() == 0 ? stack() : at::cat(outputs_);
}

at::Tensor StepOutput::stack() const {
  check_same_shape("stack");
  return at::stack(outputs_);
}

}  // namespace shoal::parallel
