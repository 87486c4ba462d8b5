// Averages and updates that continue after the next forward has begun.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "torch_plugin/ddp/averages.h"
#include "torch_plugin/ddp/make_optimizer.h"

namespace shoal::ddp {

/// Receives the reducer's buckets as backward fills them, starts their averaging, and updates the parameters of each when its
/// average is ready, at the latest before the parameters are used. The values are bitwise those of an optimizer step right
/// after backward: the gradients are scaled and summed as the reducer does without a hook, and no parameter is read in
/// between.
///
/// The larger part of every bucket is averaged during backward, the rest during the next forward, in the order in which
/// forward needs the parameters (see Averages). A model that runs its parts in another order than it lists them is slower;
/// the results are the same.
///
/// Collective. Throws the exceptions of the group's backend, and again whenever an average is needed after that. Averages in
/// flight may outlive the object: they own their memory. Thread rule: one thread.
class DeferredUpdates {
 public:
  /// `model` must outlive the object; `parameters` are those of the reducer, in its order. Makes one optimizer for each
  /// parameter, or for each slice of one (see DataParallelOptions::update_slices), so that optimizer state does not depend on
  /// the grouping into buckets.
  DeferredUpdates(const ::torch::nn::Module& model, std::vector<at::Tensor> parameters,
                  c10::intrusive_ptr<c10d::ProcessGroup> group, const MakeOptimizer& make_optimizer, bool update_slices);

  /// For Reducer::register_comm_hook; the reducer must not call the hook after the end of this object.
  std::unique_ptr<c10d::CommHookInterface> make_hook();

  /// Before forward. Finishes everything unless the last forward announced every parameter.
  void begin_forward();
  /// Updates the parameters of `part`, once their averages are ready.
  void before_use(const ::torch::nn::Module& part);
  /// Before backward, which overwrites the gradients: finishes everything.
  void begin_backward();
  /// Updates all parameters, once all averages are ready.
  void finish();

  /// Seconds that the caller's thread waited for averages since the last call of this function.
  double take_waited_s();

 private:
  /// The unit of an update: a parameter, or elements of one that are contiguous in memory.
  struct Slice {
    at::Tensor values;
    std::unique_ptr<::torch::optim::Optimizer> optimizer;
  };
  struct Update {
    Slice* slice;
    at::Tensor gradient;
    std::int64_t begin;    // in the bucket
    std::int64_t missing;  // elements whose average is not ready
  };
  /// A bucket of the last backward.
  struct Bucket {
    std::vector<std::size_t> parameters;
    std::vector<Update> updates;     // in the order of the bucket
    std::vector<std::size_t> ready;  // of the updates
    std::size_t left = 0;            // updates still to do
  };

  void add_bucket(const c10d::GradBucket& bucket);
  void finish(std::size_t bucket);
  void note(const Averages::Part& part);
  void update_one(Bucket& bucket);

  const std::vector<at::Tensor> parameters_;
  std::vector<std::vector<Slice>> slices_;                         // by parameter
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;  // of a parameter
  std::unordered_map<const ::torch::nn::Module*, std::vector<std::size_t>> parameters_of_;
  std::size_t awaited_ = 0;  // parameters whose gradients backward has not computed yet
  Averages averages_;

  std::vector<Bucket> buckets_;         // by the number from averages_
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<bool> announced_;         // by parameter, in the last forward
  bool all_announced_ = false;
  double waited_s_ = 0;
};

}  // namespace shoal::ddp
