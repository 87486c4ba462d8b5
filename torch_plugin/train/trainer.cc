#include "torch_plugin/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include <sys/resource.h>

#include "torch_plugin/data/loader.h"
#include "torch_plugin/data/sampler.h"
#include "torch_plugin/ddp/data_parallel.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/train/progress.h"

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

constexpr std::int64_t kUnmeasuredSteps = 2;  // the first makes connections, the second regroups the gradients
constexpr std::size_t kEvaluationBatch = 64;
constexpr std::size_t kLanes = 2;  // with next_forward; three and four were slower at 1 Gbit/s

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

/// User and system time of all threads of this process.
double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Lends a batch's memory to torch without copying it.
std::pair<at::Tensor, at::Tensor> to_tensors(data::Batch batch, const data::Dataset& dataset) {
  auto shared = std::make_shared<data::Batch>(std::move(batch));
  const auto size = static_cast<std::int64_t>(shared->size());
  const auto keep = [shared](void*) {};
  return {::torch::from_blob(shared->images.data(), {size, dataset.channels, dataset.height, dataset.width}, keep, at::kFloat),
          ::torch::from_blob(shared->labels.data(), {size}, keep, at::kLong)};
}

/// Sums over the steps of one turn or one epoch of one backend.
struct Measured {
  std::int64_t steps = 0;
  double seconds = 0;
  double cpu_s = 0;
  CommTimes comm;
};

/// One backend with its own replica of everything.
struct Contestant {
  ContestantOptions options;
  std::shared_ptr<CommClock> clock;
  std::shared_ptr<models::ImageClassifier> model;
  std::unique_ptr<ddp::DataParallel> parallel;
  std::unique_ptr<data::Loader> loader;
  std::int64_t step = 0;  ///< made so far, over all epochs
  Measured epoch;
  std::vector<double> turn_rates;  ///< images per second of all ranks, of this epoch's turns
  std::vector<double> losses;      ///< of this epoch's steps, mean over the ranks
};

Result<Contestant> make_contestant(const Job& job, const ContestantOptions& wanted, const models::ModelInfo& model,
                                   const data::Dataset& images, const TrainOptions& options) {
  Contestant contestant{.options = wanted,
                        .clock = std::make_shared<CommClock>(),
                        .model = nullptr,
                        .parallel = nullptr,
                        .loader = nullptr,
                        .epoch = {},
                        .turn_rates = {},
                        .losses = {}};
  const bool defers = wanted.overlap == "next_forward";
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups;
  const std::size_t lanes = defers && job.size() > 1 ? kLanes : 1;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    Result<c10::intrusive_ptr<c10d::ProcessGroup>> group =
        make_group(job, wanted.backend, wanted.name() + "/" + std::to_string(lane), contestant.clock);
    if (!group.ok()) return group.status();
    groups.push_back(std::move(group).value());
  }
  ::torch::manual_seed(options.seed);
  contestant.model = model.make(images.channels, images.classes);
  const auto sgd =
      ::torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum).weight_decay(options.weight_decay);
  contestant.parallel = std::make_unique<ddp::DataParallel>(
      *contestant.model, groups.front(),
      ddp::DataParallelOptions{.overlap = defers ? ddp::Overlap::next_forward : ddp::Overlap::backward,
                               .make_optimizer =
                                   [sgd](std::vector<at::Tensor> parameters) {
                                     return std::make_unique<::torch::optim::SGD>(std::move(parameters), sgd);
                                   },
                               .bucket_mib = options.bucket_mib,
                               .first_bucket_mib = options.first_bucket_mib,
                               .more_lanes = {groups.begin() + 1, groups.end()}});
  return contestant;
}

/// One optimizer step on the next batch. Returns this rank's loss.
double make_step(Contestant& contestant, const data::Dataset& images) {
  std::optional<data::Batch> batch = contestant.loader->next();
  TORCH_CHECK(batch.has_value(), "the epoch has fewer batches than steps");
  const auto [pixels, labels] = to_tensors(std::move(*batch), images);
  contestant.parallel->clear_gradients();
  contestant.parallel->before_forward();
  const at::Tensor loss = ::torch::cross_entropy_loss(contestant.model->forward(pixels), labels);
  contestant.parallel->before_backward();
  loss.backward();
  contestant.parallel->step();
  ++contestant.step;
  return loss.item<double>();
}

/// The mean over the ranks of each of `values`.
Status average(Communicator& control, std::vector<double>& values) {
  return control.all_reduce(values.data(), values.data(), values.size(), DataType::float64, ReduceOp::avg);
}

/// Correct answers on the test images, divided by their number. Each rank looks at its part.
Result<double> accuracy(const Job& job, Contestant& contestant, const data::Dataset& test) {
  try {
    contestant.parallel->synchronize();
  } catch (const std::exception& error) {
    return Status(StatusCode::peer_failed, contestant.options.backend + ", before evaluation: " + torch::plain_message(error));
  }
  const at::NoGradGuard no_grad;
  contestant.model->eval();
  data::LoaderOptions share{.order = {}, .batch = kEvaluationBatch};
  for (auto i = static_cast<std::size_t>(job.rank()); i < test.size(); i += static_cast<std::size_t>(job.size()))
    share.order.push_back(i);
  double correct = 0;
  for (std::size_t first = 0; first < share.order.size(); first += share.batch) {
    const std::size_t count = std::min(share.batch, share.order.size() - first);
    const auto [pixels, labels] = to_tensors(data::make_batch(test, share, first, count), test);
    correct += contestant.model->forward(pixels).argmax(1).eq(labels).sum().item<double>();
  }
  contestant.model->train();
  const Status summed = job.control->all_reduce(&correct, &correct, 1, DataType::float64, ReduceOp::sum);
  if (!summed.ok()) return summed;
  return correct / static_cast<double>(test.size());
}

/// Runs all epochs. Functions return early with status or interrupted set in the outcome.
class Run {
 public:
  Run(const Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
      const std::atomic<bool>& stop)
      : job_(job), model_(model), images_(images), options_(options), stop_(stop), progress_(job.rank() == 0) {
    const std::size_t ranks = static_cast<std::size_t>(job.size());
    const std::size_t share = (images.train.size() + ranks - 1) / ranks;
    const auto batch = static_cast<std::size_t>(options.batch);
    steps_per_epoch_ = static_cast<std::int64_t>((share + batch - 1) / batch);
    total_steps_ = steps_per_epoch_ * options.epochs;
    if (options.steps > 0) total_steps_ = std::min(total_steps_, options.steps);
  }

  TrainOutcome run() {
    for (const ContestantOptions& wanted : options_.contestants) {
      Result<Contestant> contestant = make_contestant(job_, wanted, model_, images_.train, options_);
      if (!contestant.ok()) {
        outcome_.status = contestant.status();
        return std::move(outcome_);
      }
      contestants_.push_back(std::move(contestant).value());
    }
    start_ = steady_clock::now();
    for (int epoch = 1; epoch <= options_.epochs && going() && contestants_[0].step < total_steps_; ++epoch) run_epoch(epoch);
    progress_.finish();
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] bool going() const { return outcome_.status.ok() && !outcome_.interrupted; }

  void run_epoch(int epoch) {
    for (Contestant& contestant : contestants_) begin_epoch(contestant, epoch);
    const std::int64_t end = std::min(static_cast<std::int64_t>(epoch) * steps_per_epoch_, total_steps_);
    for (int round = 0; going() && contestants_[0].step < end; ++round) {
      const std::int64_t done = contestants_[0].step;
      const std::int64_t turn = std::min<std::int64_t>(done == 0 ? kUnmeasuredSteps : options_.block, end - done);
      for (std::size_t i = 0; i < contestants_.size() && going(); ++i) {
        // Every other round in the other order, so that nobody always comes after the same one.
        Contestant& contestant = contestants_[round % 2 == 0 ? i : contestants_.size() - 1 - i];
        run_turn(contestant, epoch, turn);
      }
    }
    for (Contestant& contestant : contestants_) {
      if (!contestant.losses.empty()) end_epoch(contestant, epoch);
    }
  }

  void begin_epoch(Contestant& contestant, int epoch) {
    contestant.epoch = {};
    contestant.turn_rates.clear();
    contestant.losses.clear();
    const auto pass = static_cast<std::uint64_t>(epoch - 1);
    contestant.loader = std::make_unique<data::Loader>(
        images_.train, data::LoaderOptions{.order = data::distributed_order(images_.train.size(), job_.rank(), job_.size(),
                                                                            true, options_.seed, pass),
                                           .batch = static_cast<std::size_t>(options_.batch),
                                           .augment = options_.augment,
                                           .seed = options_.seed,
                                           .epoch = pass});
  }

  void run_turn(Contestant& contestant, int epoch, std::int64_t steps) {
    const bool measured = contestant.step > 0;
    if (outcome_.status = job_.control->barrier(); !outcome_.status.ok()) return;
    Measured turn;
    std::vector<double> losses;
    const double cpu_before = cpu_seconds();
    const auto start = steady_clock::now();
    try {
      for (; turn.steps < steps; ++turn.steps) {
        if (stop_) {
          outcome_.interrupted = true;
          return;
        }
        losses.push_back(make_step(contestant, images_.train));
        add_comm(contestant, turn.comm);
      }
      contestant.parallel->flush();  // a turn pays for all it has begun
      add_comm(contestant, turn.comm);
    } catch (const std::exception& error) {
      outcome_.interrupted = stop_;
      if (!stop_)
        outcome_.status =
            Status(StatusCode::peer_failed, contestant.options.backend + ", step " + std::to_string(contestant.step + 1) +
                                                ": " + torch::plain_message(error));
      return;
    }
    turn.seconds = seconds_since(start);
    turn.cpu_s = cpu_seconds() - cpu_before;
    finish_turn(contestant, epoch, turn, std::move(losses), measured);
  }

  /// Adds what the clocks have shown since the last call.
  static void add_comm(Contestant& contestant, CommTimes& sums) {
    const CommTimes step = contestant.clock->take_step();
    const double waited_s = contestant.parallel->take_waited_s();
    sums.exposed_s += contestant.parallel->overlap() == ddp::Overlap::next_forward ? waited_s : step.exposed_s;
    sums.busy_s += step.busy_s;
    sums.bytes += step.bytes;
  }

  /// Brings the ranks' figures of a turn together.
  void finish_turn(Contestant& contestant, int epoch, const Measured& turn, std::vector<double> losses, bool measured) {
    std::vector<double> figures = std::move(losses);
    const std::size_t steps = figures.size();
    for (const double figure : {turn.seconds, turn.cpu_s, turn.comm.exposed_s, turn.comm.busy_s}) figures.push_back(figure);
    if (outcome_.status = average(*job_.control, figures); !outcome_.status.ok()) return;
    contestant.losses.insert(contestant.losses.end(), figures.begin(), figures.begin() + static_cast<std::ptrdiff_t>(steps));
    const double seconds = figures[steps];
    const double rate = static_cast<double>(turn.steps) * options_.batch * job_.size() / seconds;
    if (measured) {
      contestant.epoch.steps += turn.steps;
      contestant.epoch.seconds += seconds;
      contestant.epoch.cpu_s += figures[steps + 1];
      contestant.epoch.comm.exposed_s += figures[steps + 2];
      contestant.epoch.comm.busy_s += figures[steps + 3];
      contestant.epoch.comm.bytes += turn.comm.bytes;
      contestant.turn_rates.push_back(rate);
    }
    std::int64_t steps_made = 0;
    for (const Contestant& each : contestants_) steps_made += each.step;
    const auto steps_in_all = total_steps_ * static_cast<std::int64_t>(contestants_.size());
    progress_.show({.backend = shown_name(contestant),
                    .epoch = epoch,
                    .epochs = options_.epochs,
                    .step = contestant.step,
                    .steps = total_steps_,
                    .images_per_s = rate,
                    .loss = contestant.losses.back(),
                    .remaining_s = seconds_since(start_) / static_cast<double>(steps_made) *
                                   static_cast<double>(steps_in_all - steps_made)});
  }

  /// The backend's name, with the overlap where that name is not enough.
  [[nodiscard]] std::string shown_name(const Contestant& contestant) const {
    const auto same = std::ranges::count(options_.contestants, contestant.options.backend, &ContestantOptions::backend);
    return same == 1 ? contestant.options.backend : contestant.options.name();
  }

  void end_epoch(Contestant& contestant, int epoch) {
    EpochResult result;
    result.backend = contestant.options.backend;
    result.overlap = contestant.options.overlap;
    result.model = model_.name;
    result.dataset = images_.train.name;
    result.ranks = job_.size();
    result.nodes = job_.control->nodes();
    if (const char* rate = std::getenv("SHOAL_CLUSTER_RATE"); rate != nullptr) result.rate = rate;
    result.batch_per_rank = options_.batch;
    result.epoch = epoch;
    result.steps = contestant.epoch.steps;
    result.seconds = contestant.epoch.seconds;
    result.images_per_s = median(contestant.turn_rates);
    result.comm_exposed_s = contestant.epoch.comm.exposed_s;
    result.comm_busy_s = contestant.epoch.comm.busy_s;
    result.bytes = static_cast<double>(contestant.epoch.comm.bytes);
    if (contestant.epoch.seconds > 0) result.cpu_percent = 100 * contestant.epoch.cpu_s / contestant.epoch.seconds;
    for (const double loss : contestant.losses) result.loss += loss / static_cast<double>(contestant.losses.size());
    result.step_loss = contestant.losses;
    if (options_.evaluate && going()) {
      const Result<double> share = accuracy(job_, contestant, images_.test);
      if (share.ok())
        result.accuracy = share.value();
      else
        outcome_.status = share.status();
    }
    outcome_.results.push_back(std::move(result));
  }

  const Job& job_;
  const models::ModelInfo& model_;
  const data::Located& images_;
  const TrainOptions& options_;
  const std::atomic<bool>& stop_;
  Progress progress_;
  std::vector<Contestant> contestants_;
  std::int64_t steps_per_epoch_ = 0;
  std::int64_t total_steps_ = 0;
  steady_clock::time_point start_;
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train(const Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                   const std::atomic<bool>& stop) {
  return Run(job, model, images, options, stop).run();
}

}  // namespace shoal::train
