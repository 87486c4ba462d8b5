// Averages and updates that go on while the next forward has begun.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace shoal::ddp {

/// Makes an optimizer for some parameters. It must treat each parameter by itself, as all of torch::optim but LBFGS do.
using MakeOptimizer = std::function<std::unique_ptr<::torch::optim::Optimizer>(std::vector<at::Tensor>)>;

/// Receives the reducer's buckets as backward fills them, starts their averaging, and updates the parameters of each when its
/// average is there, at the latest when the parameters are about to be used. The values are those of an optimizer step right
/// after backward, bit for bit: the gradients are scaled and summed as the reducer does without a hook, and no parameter is
/// read in between.
///
/// A large bucket travels in pieces, so that what is needed first overtakes it. The first steps send in the order in which
/// backward fills the buckets. After that, every `kLearnedSteps` steps, the ranks tell each other what they measured and decide
/// the order by the slowest of them (see transfer_order.h): a communicator's calls are in the same order on every rank, so the
/// order cannot be left to when things happen. A piece is held back until its turn.
///
/// Collective; throws what the group's backend throws. What is in flight may outlive the object: it holds its own memory.
/// Thread rule: one thread.
class DeferredUpdates {
 public:
  static constexpr int kLearnedSteps = 3;

  /// `model` must outlive the object; `parameters` are those of the reducer, in its order. Makes one optimizer for each, so
  /// that their state does not depend on how they are grouped into buckets. `piece_bytes`: the most that travels as one.
  DeferredUpdates(const ::torch::nn::Module& model, std::vector<at::Tensor> parameters,
                  c10::intrusive_ptr<c10d::ProcessGroup> group, const MakeOptimizer& make_optimizer, std::size_t piece_bytes);

  /// For Reducer::register_comm_hook; must not be called when this object is gone.
  std::unique_ptr<c10d::CommHookInterface> make_hook();

  /// Before forward. Finishes everything unless the last forward announced every parameter.
  void begin_forward();
  /// Updates the parameters of `part`, once their averages are there.
  void before_use(const ::torch::nn::Module& part);
  /// Before backward, which writes over the gradients: finishes everything.
  void begin_backward();
  /// Updates all parameters, once all averages are there.
  void finish();
  /// The reducer's buckets are other ones from the next backward on. Nothing may be in flight.
  void regrouped();

  /// Seconds that the caller's thread had to wait for averages since the last call.
  double take_waited_s();

 private:
  using Clock = std::chrono::steady_clock;

  /// A bucket of the last backward.
  struct Bucket {
    std::vector<std::size_t> parameters;
    std::size_t pieces_left = 0;  ///< whose averages are not known to be there
    Clock::time_point ready;
  };
  struct Piece {
    std::size_t bucket = 0;
    at::Tensor gradients;
    Clock::time_point started;
    std::shared_ptr<std::atomic<Clock::rep>> ended;  // written by the backend's thread; 0: not yet
    c10::intrusive_ptr<c10d::Work> work;
  };

  void add_bucket(const c10d::GradBucket& bucket);
  void start(Piece& piece);
  void take_next();
  void forget();
  void sample();
  void decide_order();
  [[nodiscard]] std::size_t piece_at(std::size_t turn) const { return order_.empty() ? turn : order_[turn]; }

  const std::vector<at::Tensor> parameters_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::size_t piece_bytes_;
  std::vector<std::unique_ptr<::torch::optim::Optimizer>> optimizers_;  // one a parameter
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;       // of a parameter
  std::unordered_map<const ::torch::nn::Module*, std::vector<std::size_t>> parameters_of_;

  std::vector<Bucket> buckets_;         // by the reducer's index; it offers them in this order
  std::vector<Piece> pieces_;           // of the first bucket, of the second, ...
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<std::size_t> order_;      // of the pieces, as decided; empty: as offered
  std::size_t started_ = 0;             // turns, of the last backward
  std::size_t taken_ = 0;               // turns that have been waited for

  std::vector<std::size_t> first_use_;  // by parameter: its place among the announcements of the last forward
  std::size_t announcements_ = 0;
  bool all_announced_ = false;

  bool grouped_ = false;                      // the buckets are those that stay
  Clock::time_point last_ended_;              // the last average of the backward before; at about the same time on all ranks
  std::vector<std::vector<double>> ready_s_;  // samples, by bucket: since last_ended_
  std::vector<double> wire_s_per_byte_;       // samples
  double waited_s_ = 0;
};

}  // namespace shoal::ddp
