// Data-parallel training in C++ with torch's own gradient reducer: what DistributedDataParallel is in Python, and more overlap.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "torch_plugin/ddp/announcing.h"
#include "torch_plugin/ddp/comm_hooks.h"
#include "torch_plugin/ddp/make_optimizer.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace shoal::ddp {

class DeferredUpdates;

/// What gradients are averaged beside.
enum class Overlap {
  backward,      ///< the rest of backward, as in DistributedDataParallel; the parameters are updated when all is there
  next_forward,  ///< and the optimizer, and the next forward up to what uses the parameters; the same values
};

/// Buckets as in DistributedDataParallel: they fill up in the order in which backward makes the gradients.
struct DataParallelOptions {
  Overlap overlap = Overlap::backward;
  MakeOptimizer make_optimizer = {};  ///< needed for next_forward and for step()
  /// The optimizers of make_optimizer treat each element by itself and no tensor as a whole, as SGD, Adam, Adadelta and RMSprop
  /// do and LARS and LAMB do not. next_forward then updates parameters slice by slice, as averages arrive; the same values.
  bool update_slices = false;
  std::optional<double> bucket_mib = std::nullopt;  ///< a bucket is sent when it holds this much; 25, or 0.5 with next_forward
  double first_bucket_mib = 1;                      ///< so that communication starts early
  bool broadcast_buffers = true;        ///< every training forward starts from rank 0's; else each rank goes on with its own
  bool gradient_as_bucket_view = true;  ///< a gradient is a piece of its bucket, which saves memory and a copy
  bool find_unused_parameters =
      false;                ///< some parameters may get no gradient, others on each rank; costs a walk over the graph
  CommHook comm_hook = {};  ///< with Overlap::backward: averages the buckets instead of an all_reduce
};

/// Keeps the replicas of a model on all ranks of a group the same: parameters and buffers start as rank 0's; every backward
/// averages the gradients over the ranks, bucket by bucket while backward goes on; every training forward starts from rank 0's
/// buffers.
///
///     shoal::ddp::DataParallel parallel(*model, group);
///     ...
///     parallel.clear_gradients();
///     auto loss = f(parallel.forward([&] { return model->forward(images); }));
///     loss.backward();
///     optimizer.step();           // or parallel.step()
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
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
class DataParallel {
 public:
  /// Any module. `model` must outlive the object. All parameters that require a gradient must get one in every backward, unless
  /// find_unused_parameters is set.
  /// Throws c10::ValueError for a model without such parameters, for next_forward without make_optimizer, and for next_forward
  /// with comm_hook or find_unused_parameters.
  DataParallel(::torch::nn::Module& model, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Runs `body`, which runs the model once, and returns what it returns: a tensor, a vector, a pair or a tuple of tensors. The
  /// backward that follows averages the gradients, unless this is inside of no_sync() or gradients are switched off.
  template <typename Body>
  auto forward(Body&& body) {
    before_forward();
    auto output = std::forward<Body>(body)();
    before_backward(tensors_of(output));
    return output;
  }
  /// The two halves of forward(), for a body that returns something else. `outputs`, what backward will start from, is looked
  /// at with find_unused_parameters only. Throws c10::ValueError where it is missing then.
  void before_forward();
  void before_backward(const std::vector<at::Tensor>& outputs = {});

  /// While one exists, forwards make no average of the backward that follows: gradients add up on their own rank, until the
  /// first backward after a forward outside averages the sum. So N small batches give the gradient of one that holds them all:
  ///
  ///     {
  ///       const auto alone = parallel.no_sync();
  ///       for (batches but the last) f(parallel.forward(...)).backward();
  ///     }
  ///     f(parallel.forward(the last)).backward();
  class [[nodiscard]] NoSync {
   public:
    ~NoSync() { flag_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DataParallel;
    explicit NoSync(bool& flag) : flag_(flag), before_(std::exchange(flag, true)) {}
    bool& flag_;
    const bool before_;
  };
  /// Must not outlive the object. They may be nested.
  NoSync no_sync() { return NoSync(alone_); }

  /// Forgets the gradients of the last step, as the module's zero_grad() does; but not while an average still needs them. The
  /// optimizer's zero_grad() cannot: gradients are views of the buckets, unless gradient_as_bucket_view is false.
  void clear_gradients();
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
  static std::vector<at::Tensor> tensors_of(const at::Tensor& output) { return {output}; }
  static std::vector<at::Tensor> tensors_of(const std::vector<at::Tensor>& outputs) { return outputs; }
  template <typename... Tensors>
  static std::vector<at::Tensor> tensors_of(const std::tuple<Tensors...>& outputs) {
    return std::apply([](const auto&... output) { return std::vector<at::Tensor>{output...}; }, outputs);
  }
  template <typename First, typename Second>
  static std::vector<at::Tensor> tensors_of(const std::pair<First, Second>& outputs) {
    return {outputs.first, outputs.second};
  }

  void start_buffers();
  void finish_buffers();
  void broadcast_buffers();

  ::torch::nn::Module& model_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const bool finds_unused_;
  std::vector<at::Tensor> parameters_;                    // those that get gradients
  std::vector<at::Tensor> buffers_;                       // those that follow rank 0
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;  // with Overlap::backward
  std::unique_ptr<DeferredUpdates> updates_;              // with Overlap::next_forward
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // with find_unused_parameters
  std::size_t gradient_bytes_ = 0;
  bool alone_ = false;            // inside of no_sync()
  bool buffers_are_old_ = true;   // a training forward may have changed them since they were rank 0's
  at::Tensor buffers_in_flight_;  // the bytes of all, one after the other
  c10::intrusive_ptr<c10d::Work> buffers_work_;
  double waited_s_ = 0;
};

}  // namespace shoal::ddp
