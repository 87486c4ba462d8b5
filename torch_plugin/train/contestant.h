// One backend with its own replica of everything.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "torch_plugin/data/loader.h"
#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/models/model.h"
#include "torch_plugin/train/comm_clock.h"
#include "torch_plugin/train/job.h"
#include "torch_plugin/train/optimizers.h"
#include "torch_plugin/train/options.h"
#include "torch_plugin/train/step_trace.h"

namespace shoal::train {

/// A network in training, its optimizer, its images and what carries its gradients. Collective: all ranks make the same calls
/// in the same order. What the backend throws passes through, but where a Status is returned. Thread rule: one thread.
class Contestant {
 public:
  /// `images` and `options` must outlive the object. Every contestant starts from the same seed.
  static Result<std::unique_ptr<Contestant>> make(const Job& job, const ContestantOptions& wanted,
                                                  const models::ModelInfo& model, const data::Dataset& images,
                                                  const TrainOptions& options);
  Contestant(const Contestant&) = delete;
  Contestant& operator=(const Contestant&) = delete;

  [[nodiscard]] const ContestantOptions& wanted() const { return wanted_; }
  /// Optimizer steps made, over all epochs.
  [[nodiscard]] std::int64_t step() const { return step_; }

  /// From now on the images come in the order of epoch `pass` (from 0), without those of its first `done_steps` steps.
  void begin_epoch(std::uint64_t pass, std::int64_t done_steps);
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

 private:
  Contestant(const Job& job, ContestantOptions wanted, const data::Dataset& images, const TrainOptions& options);

  void learn(data::Batch batch, double learning_rate, double weight);
  void now(const char* kind);
  at::Tensor scores(const at::Tensor& pixels);

  const Job& job_;
  const ContestantOptions wanted_;
  const at::Device device_;
  const data::Dataset& images_;
  const TrainOptions& options_;
  const std::shared_ptr<CommClock> clock_ = std::make_shared<CommClock>();
  std::shared_ptr<models::ImageClassifier> model_;
  Optimizers optimizers_;
  std::unique_ptr<ddp::DataParallel> parallel_;
  std::unique_ptr<data::Loader> loader_;
  std::size_t batches_left_ = 0;  // in the epoch
  std::int64_t step_ = 0;
  double loss_ = 0;  // of the step in progress
  std::unique_ptr<StepTrace> trace_;
};

}  // namespace shoal::train
