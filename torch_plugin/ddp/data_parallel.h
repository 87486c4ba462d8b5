// Data-parallel training in C++ with torch's own gradient reducer: the counterpart of Python's DistributedDataParallel, with
// more overlap.
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

/// What the averaging of gradients overlaps with.
enum class Overlap {
  backward,      ///< with the rest of backward, as in DistributedDataParallel; parameters are updated after all averages
  next_forward,  ///< also with the optimizer and the next forward, up to the use of each parameter; the same values
};

/// Buckets as in DistributedDataParallel: filled in the order in which backward computes the gradients.
struct DataParallelOptions {
  Overlap overlap = Overlap::backward;
  MakeOptimizer make_optimizer = {};  ///< needed for next_forward and for step()
  /// The optimizers of make_optimizer treat each element by itself and no tensor as a whole. This holds for SGD, Adam,
  /// Adadelta and RMSprop, not for LARS and LAMB. next_forward then updates parameters slice by slice, as averages arrive;
  /// the same values.
  bool update_slices = false;
  std::optional<double> bucket_mib = std::nullopt;  ///< a bucket is sent when it holds this much; 25, or 0.5 with next_forward
  double first_bucket_mib = 1;                      ///< so that communication starts early
  bool broadcast_buffers = true;        ///< every training forward starts from rank 0's; else each rank keeps its own
  bool gradient_as_bucket_view = true;  ///< a gradient is a view of its bucket, which saves memory and a copy
  bool find_unused_parameters =
      false;                ///< some parameters may get no gradient, different ones on each rank; costs a walk over the graph
  CommHook comm_hook = {};  ///< with Overlap::backward: averages the buckets instead of an all_reduce
};

/// Keeps the replicas of a model on all ranks of a group equal. Parameters and buffers start as rank 0's. Every backward
/// averages the gradients over the ranks, bucket by bucket while backward continues. Every training forward starts from rank
/// 0's buffers.
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
/// With Overlap::backward the gradients are averaged when backward returns. With Overlap::next_forward averages and updates
/// continue until the next forward needs them. If the model is Announcing and announced all parameters in its last forward,
/// each part of the model waits for its own parameters; otherwise forward waits for all of them. Gradients are forgotten
/// after their use, and parameters may be read only after flush().
///
/// The first backward sends everything as one bucket and records the order; from the second one on the buckets overlap.
/// Collective: every rank makes the same calls in the same order. Throws the exceptions of the group's backend, from the call
/// that needs the result. May be destroyed with averages in flight; does not wait for them. Thread rule: one thread.
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

  /// Runs `body`, which runs the model once, and returns its result: a tensor, a vector, a pair or a tuple of tensors. The
  /// following backward averages the gradients, unless this call is inside no_sync() or gradients are disabled.
  template <typename Body>
  auto forward(Body&& body) {
    before_forward();
    auto output = std::forward<Body>(body)();
    before_backward(tensors_of(output));
    return output;
  }
  /// The two halves of forward(), for a body that returns another type. `outputs`, the tensors from which backward starts, is
  /// used only with find_unused_parameters. Throws c10::ValueError if it is missing then.
  void before_forward();
  void before_backward(const std::vector<at::Tensor>& outputs = {});

  /// While an object exists, the backward after a forward does not average: each rank accumulates its gradients. The first
  /// backward after a forward outside the scope averages the sum. So N small batches give the gradient of one batch that
  /// contains them all:
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

  /// Clears the gradients of the last step, as the module's zero_grad() does, but not while an average still needs them. The
  /// optimizer's zero_grad() cannot do this: gradients are views of the buckets, unless gradient_as_bucket_view is false.
  void clear_gradients();
  /// Updates the parameters, or defers the updates until forward needs them. Throws c10::ValueError without make_optimizer.
  void step();
  /// Finishes averages and updates in flight.
  void flush();
  /// Finishes averages and updates, and sets the buffers to rank 0's.
  void synchronize();

  /// Bytes of gradients that one backward averages.
  [[nodiscard]] std::size_t gradient_bytes() const { return gradient_bytes_; }
  [[nodiscard]] Overlap overlap() const { return updates_ ? Overlap::next_forward : Overlap::backward; }
  /// Seconds since the last call of this function in which this thread waited for averages or buffers outside of backward.
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
  std::vector<at::Tensor> parameters_;                    // parameters that get gradients
  std::vector<at::Tensor> buffers_;                       // buffers that follow rank 0
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;  // with Overlap::backward
  std::unique_ptr<DeferredUpdates> updates_;              // with Overlap::next_forward
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // with find_unused_parameters
  std::size_t gradient_bytes_ = 0;
  bool alone_ = false;            // inside of no_sync()
  bool buffers_are_old_ = true;   // a training forward may have changed them since they were set to rank 0's
  at::Tensor buffers_in_flight_;  // the bytes of all buffers, concatenated
  c10::intrusive_ptr<c10d::Work> buffers_work_;
  double waited_s_ = 0;
};

}  // namespace shoal::ddp
