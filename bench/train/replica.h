// One backend with its own model, optimizer and data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bench/train/comm_clock.h"
#include "bench/train/data/loader.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/job.h"
#include "bench/train/models/model.h"
#include "bench/train/optimizers.h"
#include "bench/train/options.h"
#include "bench/train/step_trace.h"
#include "torch_plugin/ddp/data_parallel.h"

namespace shoal::train {

/// A network in training, its optimizer, its images and the backend that averages its gradients. Collective: all ranks make
/// the same calls in the same order. Exceptions of the backend propagate, except from functions that return a Status. Thread
/// rule: one thread.
class Replica {
 public:
  /// `images` and `options` must outlive the object. Every replica starts from the same seed.
  static Result<std::unique_ptr<Replica>> make(const Job& job, const ReplicaOptions& wanted, const models::ModelInfo& model,
                                               const data::Dataset& images, const TrainOptions& options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  [[nodiscard]] const ReplicaOptions& wanted() const { return wanted_; }
  /// Optimizer steps made, over all epochs.
  [[nodiscard]] std::int64_t step() const { return step_; }

  /// From now on the images are those of the current pass of `course`, without those of the steps already made.
  void begin_epoch(const EpochPlan& course);
  /// One optimizer step on the next batches. Returns this rank's loss.
  double make_step(double learning_rate);
  /// The same, with a recording of the step and of the operations that end before finish_trace.
  double make_traced_step(double learning_rate);
  /// After flush(): the events of the traced step.
  std::vector<TraceEvent> finish_trace();
  /// Waits until all averages and updates have been made.
  void flush();
  /// Communication times since the last call. They are unknown if communication runs in the queue of a GPU, see knows_comm().
  CommTimes take_comm();
  [[nodiscard]] bool knows_comm() const { return device_.is_cpu(); }

  /// Correct answers on the test images, divided by their number. Each rank evaluates its part.
  Result<double> accuracy(const data::Dataset& test);

  /// Everything that training needs to continue.
  Tensors state();
  /// Continues from `state`. First makes a step and discards it: the step sorts the gradients into buckets, so that the next
  /// step sums as without the interruption. Throws c10::Error if `state` belongs to something else.
  void restore(const Tensors& state);

  /// The last step whose updates have all been made on this rank, also after failures. Only with options.survives(), as the
  /// next function.
  [[nodiscard]] std::int64_t complete_step() const;
  /// After a failure: aborts the group at once, so that ranks that wait for an average which needs this rank get an error.
  void give_up();
  /// Continues from step `step`, complete_step() or the one before it, on the surviving ranks of the job. The state is that
  /// of this rank, except for the parts that all ranks must take from one rank. If it throws, because another rank was lost,
  /// it can be called again.
  void go_on_from(std::int64_t step);
  /// Equal on all ranks if their parameters are bitwise equal. After flush().
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  Replica(const Job& job, ReplicaOptions wanted, const data::Dataset& images, const TrainOptions& options);

  /// The buffers at the start of a step.
  struct Buffers {
    std::int64_t step = -1;  ///< the number of steps made before
    std::vector<at::Tensor> values;
  };

  Status join();
  void make_parallel();
  Tensors copies();
  void keep_buffers();
  void bring_back_buffers(std::int64_t step);
  void learn(data::Batch batch, double learning_rate, double weight);
  void now(const char* kind);
  at::Tensor scores(const at::Tensor& pixels);

  const Job& job_;
  const ReplicaOptions wanted_;
  const at::Device device_;
  const data::Dataset& images_;
  const TrainOptions& options_;
  std::shared_ptr<CommClock> clock_ = std::make_shared<CommClock>();
  std::shared_ptr<models::ImageClassifier> model_;
  Optimizers optimizers_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::unique_ptr<ddp::DataParallel> parallel_;
  std::unique_ptr<data::Loader> loader_;
  std::size_t batches_left_ = 0;  // in the epoch
  std::int64_t step_ = 0;
  std::int64_t first_step_ = 0;      // steps made before those that optimizers_ counts
  std::array<Buffers, 2> buffers_;   // of the last two steps, the newer one first
  std::optional<Tensors> to_go_on_;  // the state to continue from, until that has succeeded
  double loss_ = 0;                  // of the step in progress
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace shoal::train
