// Data-parallel training in C++ with torch's own gradient reducer: what DistributedDataParallel is in Python, and more overlap.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "torch_plugin/ddp/announcing.h"
#include "torch_plugin/ddp/deferred_updates.h"

namespace shoal::ddp {

/// What gradients are averaged beside.
enum class Overlap {
  backward,      ///< the rest of backward, as in DistributedDataParallel; the parameters are updated when all is there
  next_forward,  ///< and the optimizer, and the next forward up to what uses the parameters; the same values
};

/// Buckets as in DistributedDataParallel: they fill up in the order in which backward makes the gradients.
struct DataParallelOptions {
  Overlap overlap = Overlap::backward;
  MakeOptimizer make_optimizer = {};                ///< needed for next_forward and for step()
  std::optional<double> bucket_mib = std::nullopt;  ///< a bucket is sent when it holds this much; 25, or 0.5 with next_forward
  double first_bucket_mib = 1;                      ///< so that communication starts early
  /// With next_forward: more groups over the same ranks. Each is one more lane, on which gradients travel that forward needs
  /// later than those of the lanes before it.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> more_lanes = {};
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
///     loss.backward();
///     parallel.step();            // or an optimizer of one's own, with Overlap::backward
///     ...
///     parallel.synchronize();     // before evaluation, before the parameters are saved
///
/// With Overlap::backward the gradients are averaged when backward returns. With Overlap::next_forward averages and updates are
/// under way until the next forward needs them, one part of the model after the other where the model is Announcing and
/// announced all parameters in its last forward, else all before forward; gradients are forgotten when they have been used, and
/// parameters may be looked at after flush() only.
///
/// The first backward sends everything as one bucket and learns the order; from the second on the buckets overlap. Collective:
/// every rank makes the same calls in the same order. Throws what the group's backend throws, from whichever call needs the
/// result. May be destroyed with averages in flight: does not wait for them. Thread rule: one thread.
class DataParallel {
 public:
  /// `model` must outlive the object. All parameters that require a gradient must get one in every backward.
  /// Throws c10::ValueError where next_forward is wanted without make_optimizer.
  DataParallel(::torch::nn::Module& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Forgets the gradients of the last step. The optimizer's zero_grad cannot: gradients are views of the buckets.
  void clear_gradients();
  void before_forward();
  void before_backward();
  /// Updates the parameters, or leaves it to when they are needed. Throws c10::ValueError without make_optimizer.
  void step();
  /// Finishes averages and updates that are under way.
  void flush();
  /// Finishes averages and updates, and makes the buffers rank 0's.
  void synchronize();

  /// Bytes of gradients that one backward averages.
  [[nodiscard]] std::size_t gradient_bytes() const { return gradient_bytes_; }
  [[nodiscard]] Overlap overlap() const { return updates_ ? Overlap::next_forward : Overlap::backward; }
  /// Seconds since the last call for which this thread waited for averages or buffers outside of backward.
  double take_waited_s();

 private:
  void start_buffers();
  void finish_buffers();
  void broadcast_buffers();

  ::torch::nn::Module& model_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<at::Tensor> parameters_;  // those that get gradients
  std::vector<at::Tensor> buffers_;
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;  // with Overlap::backward
  std::unique_ptr<DeferredUpdates> updates_;              // with Overlap::next_forward
  std::unique_ptr<c10d::Reducer> reducer_;
  std::size_t gradient_bytes_ = 0;
  bool buffers_are_old_ = true;   // a training forward may have changed them since they were rank 0's
  at::Tensor buffers_in_flight_;  // the bytes of all, one after the other
  c10::intrusive_ptr<c10d::Work> buffers_work_;
  double waited_s_ = 0;
};

}  // namespace shoal::ddp
