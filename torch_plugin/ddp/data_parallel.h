// Data-parallel training in C++ with torch's own gradient reducer: what DistributedDataParallel is in Python.
#pragma once

#include <cstddef>
#include <memory>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace shoal::ddp {

/// As in DistributedDataParallel: gradients are averaged in buckets that fill up in the order in which backward makes them.
struct DataParallelOptions {
  double bucket_mib = 25;       ///< a bucket is sent when it holds this much
  double first_bucket_mib = 1;  ///< so that communication starts early
};

/// Keeps the replicas of a model on all ranks of a group the same: parameters and buffers start as rank 0's; every backward
/// averages the gradients over the ranks, bucket by bucket while backward goes on; every training forward starts from rank 0's
/// buffers.
///
///     model->train();
///     parallel.clear_gradients();
///     parallel.before_forward();
///     auto loss = f(model->forward(images));
///     parallel.before_backward();
///     loss.backward();            // the gradients are averaged when this returns
///     optimizer.step();
///
/// The first backward sends everything as one bucket and learns the order; from the second on the buckets overlap with
/// backward. Collective: every rank makes the same calls in the same order. Throws what the group's backend throws. Thread
/// rule: one thread.
class DataParallel {
 public:
  /// `model` and `group` must outlive the object. All parameters that require a gradient must get one in every backward.
  DataParallel(::torch::nn::Module& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               DataParallelOptions options = {});

  /// Forgets the gradients of the last step. The optimizer's zero_grad cannot: gradients are views of the buckets.
  void clear_gradients();
  void before_forward();
  void before_backward();

  /// Bytes of gradients that one backward averages.
  [[nodiscard]] std::size_t gradient_bytes() const { return gradient_bytes_; }

 private:
  ::torch::nn::Module& model_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<at::Tensor> parameters_;  // those that get gradients
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<c10d::Reducer> reducer_;
  std::size_t gradient_bytes_ = 0;
};

}  // namespace shoal::ddp
