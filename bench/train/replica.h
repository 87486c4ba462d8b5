// One backend with its own replica of everything.
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

/// A network in training, its optimizer, its images and what carries its gradients. Collective: all ranks make the same calls
/// in the same order. What the backend throws passes through, but where a Status is returned. Thread rule: one thread.
class Replica {
 public:
  /// `images` and `options` must outlive the object. Every replica starts from the same seed.
  static Result<std::unique_ptr<Replica>> make(const Job& job, const ContestantOptions& wanted, const models::ModelInfo& model,
                                               const data::Dataset& images, const TrainOptions& options);
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  [[nodiscard]] const ContestantOptions& wanted() const { return wanted_; }
  /// Optimizer steps made, over all epochs.
  [[nodiscard]] std::int64_t step() const { return step_; }

  /// From now on the images are those of the pass that `course` is in, but for those of the steps made.
  void begin_epoch(const EpochPlan& course);
  /// One optimizer step on the next batches. Returns this rank's loss.
  double make_step(double learning_rate);
  /// The same, recorded: the step, and the operations that end before finish_trace.
  double make_traced_step(double learning_rate);
  /// After flush(): what the traced step did.
  std::vector<TraceEvent> finish_trace();
  /// Waits until all averages and updates have been made.
  void flush();
  /// What communication took since the last call. Where it goes on in the queue of a GPU that is not known, see knows_comm().
  CommTimes take_comm();
  [[nodiscard]] bool knows_comm() const { return device_.is_cpu(); }

  /// Correct answers on the test images, divided by their number. Each rank looks at its part.
  Result<double> accuracy(const data::Dataset& test);

  /// All that training goes on from.
  Tensors state();
  /// Goes on from there. Makes a step first and forgets it: it sorts the gradients into buckets, so that the next step sums as
  /// it would have done without the break. Throws c10::Error for the state of something else.
  void restore(const Tensors& state);

  /// The last step whose updates have all been made here, whatever has failed. Where options.survives(), as the next.
  [[nodiscard]] std::int64_t complete_step() const;
  /// After a failure: whoever waits for an average that this rank no longer helps to make is told, at once.
  void give_up();
  /// Goes on from step `step`, complete_step() or the one before it, on the ranks that are left of the job. The state is that
  /// of this rank, but for what all must have from one rank. If it throws, because another rank was lost, it can be called
  /// again.
  void go_on_from(std::int64_t step);
  /// The same number on all ranks where their parameters have the same bits. After flush().
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  Replica(const Job& job, ContestantOptions wanted, const data::Dataset& images, const TrainOptions& options);

  /// What every step of this network starts with.
  struct Buffers {
    std::int64_t step = -1;  ///< that had been made
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
  const ContestantOptions wanted_;
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
  std::int64_t first_step_ = 0;      // made before those that optimizers_ counts
  std::array<Buffers, 2> buffers_;   // of the last two steps, the newer one first
  std::optional<Tensors> to_go_on_;  // while that has not succeeded
  double loss_ = 0;                  // of the step in progress
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace shoal::train
