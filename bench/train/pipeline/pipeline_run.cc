#include "bench/train/pipeline/pipeline_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>

#include "bench/train/common_stop.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/figures.h"
#include "bench/train/pipeline/pipeline_checkpoint.h"
#include "bench/train/pipeline/stage_trainer.h"
#include "bench/train/run_log.h"
#include "bench/train/schedule.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

using pipeline::Axis;
using std::chrono::steady_clock;

/// "0, 2".
std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

constexpr std::size_t kMostActions = 512;  // of a step, in results

/// What rank 0 learns of each rank.
struct RankFigures {
  std::int64_t steps = 0;
  double busy_s = 0;
  double waiting_s = 0;
  double step_s = 0;
  std::int64_t peak_bytes = 0;
  std::uint64_t fingerprint = 0;
};

/// Functions return early with status or interrupted set in the outcome.
class PipelineRun {
 public:
  PipelineRun(Job& job, const PipelinePlan& plan, const models::ModelInfo& model, const data::Located& images,
              const TrainOptions& options, const std::atomic<bool>& stop)
      : job_(job),
        plan_(plan),
        model_(model),
        images_(images),
        options_(options),
        common_stop_(*job.control, stop),
        log_(options),
        course_(images.train.size(), static_cast<std::size_t>(options.batch), plan.layout.size(Axis::replica), options.epochs),
        checkpoint_(job, plan, model, images.train, options) {
    log_.be(job.rank());
  }

  TrainOutcome run() {
    outcome_.status = prepare();
    if (outcome_.status.ok()) {
      log_.start(start_ = steady_clock::now());
      try {
        outcome_.status = resume();
        run_epochs();
      } catch (const std::exception& error) {
        fail(error);
      }
    }
    log_.finish();
    outcome_.misses_files = log_.misses_files();
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] bool going() const { return outcome_.status.ok() && !outcome_.interrupted && !over_; }
  [[nodiscard]] int epoch() const { return 1 + static_cast<int>(course_.pass()); }
  [[nodiscard]] double rate_of(std::int64_t step) const { return learning_rate(schedule_, course_.scheduled(step)); }
  [[nodiscard]] std::int64_t total_steps() const {
    return options_.steps > 0 ? std::min(course_.end(), options_.steps) : course_.end();
  }

  Status prepare() {
    if (!options_.log.empty()) {
      if (Status opened = of_rank_0(job_, log_.open(), options_.log); !opened.ok()) return opened;
    }
    Result<std::unique_ptr<StageTrainer>> made = StageTrainer::make(job_, plan_, model_, images_.train, options_);
    if (!made.ok()) return made.status();
    trainer_ = *std::move(made);
    return {};
  }

  Status resume() {
    if (Status resumed = checkpoint_.resume(course_, *trainer_); !resumed.ok()) return resumed;
    schedule_ = schedule_of(options_, course_.epoch_steps());
    steps_before_ = trainer_->step();
    if (steps_before_ < total_steps()) return {};
    return {StatusCode::invalid_argument,
            options_.resume + ": has made " + std::to_string(steps_before_) + " steps already; use more --epochs or --steps"};
  }

  /// The other pipelines may be anywhere: they must not wait for this rank.
  void fail(const std::exception& error) {
    outcome_.status = {StatusCode::aborted, "pipeline of the ranks " +
                                                list_of(plan_.layout.group(job_.rank(), Axis::pipeline)) + ", step " +
                                                std::to_string(trainer_->step() + 1) + ": " + torch::plain_message(error)};
    trainer_->abort();
    job_.control->abort(outcome_.status.message());
  }

  void run_epochs() {
    while (going() && trainer_->step() < total_steps()) {
      figures_ = {};
      use_ = {};
      trainer_->begin_epoch(course_);
      const std::int64_t end = std::min(course_.pass_end(), total_steps());
      while (going() && trainer_->step() < end) {
        run_turn(std::min<std::int64_t>(warm_ ? options_.block : kUnmeasuredSteps, end - trainer_->step()));
        if (going()) check_time();
      }
      if (outcome_.status.ok() && !figures_.losses.empty()) end_epoch();
      if (outcome_.status.ok()) outcome_.status = checkpoint_.save(course_, *trainer_);
      if (trainer_->step() >= course_.pass_end()) course_.next_pass();
    }
  }

  /// Rank 0's clock decides.
  void check_time() {
    if (options_.seconds <= 0) return;
    std::uint8_t over = seconds_since(start_) >= options_.seconds ? 1 : 0;
    outcome_.status = job_.control->broadcast(&over, 1, DataType::uint8, 0);
    over_ = over != 0;
  }

  void run_turn(std::int64_t steps) {
    if (outcome_.status = job_.control->barrier(); !outcome_.status.ok()) return;
    Turn turn{.measured = warm_, .knows_comm = false};
    const double cpu_before = cpu_seconds();
    const auto start = steady_clock::now();
    while (turn.sums.steps < steps && !outcome_.interrupted) {
      if (outcome_.status = common_stop_.ask(); !outcome_.status.ok()) return;
      turn.losses.push_back(trainer_->make_step(rate_of(trainer_->step())));
      ++turn.sums.steps;
      const Result<bool> stopped = common_stop_.answer();
      if (outcome_.status = stopped.status(); !outcome_.status.ok()) return;
      outcome_.interrupted = *stopped;
    }
    turn.sums.seconds = seconds_since(start);
    turn.sums.cpu_s = cpu_seconds() - cpu_before;
    finish_turn(std::move(turn));
    warm_ = true;
  }

  void finish_turn(Turn turn) {
    if (outcome_.status = average_losses(turn.losses); !outcome_.status.ok()) return;
    const std::vector<double> losses = std::exchange(turn.losses, {});
    if (outcome_.status = average(*job_.control, turn); !outcome_.status.ok()) return;
    turn.losses = losses;
    const StageUse use = trainer_->take_use();
    if (turn.measured) {
      use_.steps += use.steps;
      use_.busy_s += use.busy_s;
      use_.waiting_s += use.waiting_s;
      use_.step_s += use.step_s;
    }
    turn.images_per_s = static_cast<double>(turn.sums.steps) * options_.batch * replicas() / turn.sums.seconds;
    figures_.add(turn);
    const auto left = static_cast<double>(total_steps() - trainer_->step());
    const auto made = static_cast<double>(trainer_->step() - steps_before_);
    outcome_.turns.push_back(log_.tell(kShown, turn,
                                       {.epoch = epoch(),
                                        .step = trainer_->step(),
                                        .steps = total_steps(),
                                        .learning_rate = rate_of(trainer_->step() - 1),
                                        .remaining_s = seconds_since(start_) / made * left}));
  }

  /// Every rank of a pipeline has its losses. One rank of each speaks for it, in the order of the replicas on all ranks.
  Status average_losses(std::vector<double>& losses) {
    if (replicas() == 1) return {};
    std::vector<double> all(losses.size() * static_cast<std::size_t>(job_.size()));
    if (Status status = job_.control->all_gather(losses.data(), all.data(), losses.size(), DataType::float64); !status.ok())
      return status;
    for (std::size_t step = 0; step < losses.size(); ++step) {
      losses[step] = 0;
      for (int replica = 0; replica < replicas(); ++replica) {
        const auto rank = static_cast<std::size_t>(plan_.layout.rank({.replica = replica}));
        losses[step] += all[rank * losses.size() + step] / replicas();
      }
    }
    return {};
  }

  void end_epoch() {
    EpochResult result = to_result(figures_);
    result.backend = kShown.backend;
    result.overlap = kShown.overlap;
    result.model = model_.name;
    result.dataset = images_.train.name;
    result.ranks = job_.size();
    result.nodes = job_.control->nodes();
    if (const char* rate = std::getenv("SHOAL_CLUSTER_RATE"); rate != nullptr) result.rate = rate;
    result.device = job_.device.is_cpu() ? "cpu" : "cuda";
    result.threads = at::get_num_threads();
    result.batch_per_rank = options_.batch;
    result.epoch_steps = course_.epoch_steps();
    result.epoch = epoch();
    result.knows_comm = false;
    if (outcome_.status = add_pipeline(result); !outcome_.status.ok()) return;
    if (options_.evaluate && !outcome_.interrupted) {
      const Result<double> share = trainer_->accuracy(images_.test);
      if (outcome_.status = share.status(); !share.ok()) return;
      result.accuracy = *share;
    }
    log_.tell(result, trainer_->step());
    outcome_.results.push_back(std::move(result));
  }

  /// What each rank did in the last step. More actions than a picture can show stay untold.
  Result<std::vector<std::vector<parallel::ComputedAction>>> last_step_of_ranks() {
    std::vector<parallel::ComputedAction> own = trainer_->last_actions();
    own.resize(kMostActions);  // those that are left have no end
    std::vector<parallel::ComputedAction> all(static_cast<std::size_t>(job_.size()) * kMostActions);
    const std::size_t bytes = kMostActions * sizeof(parallel::ComputedAction);
    if (Status status = job_.control->all_gather(own.data(), all.data(), bytes, DataType::uint8); !status.ok()) return status;
    std::vector<std::vector<parallel::ComputedAction>> of_ranks;
    for (auto first = all.begin(); first != all.end(); first += kMostActions) {
      std::erase_if(of_ranks.emplace_back(first, first + kMostActions),
                    [](const parallel::ComputedAction& each) { return each.end_s == 0; });
    }
    return of_ranks;
  }

  Status add_pipeline(EpochResult& result) {
    const RankFigures own{
        use_.steps, use_.busy_s, use_.waiting_s, use_.step_s, trainer_->peak_bytes(), trainer_->fingerprint()};
    std::vector<RankFigures> all(static_cast<std::size_t>(job_.size()));
    if (Status status = job_.control->all_gather(&own, all.data(), sizeof own, DataType::uint8); !status.ok()) return status;
    PipelineResult figures{.schedule = std::string(to_string(plan_.config.pipeline)),
                           .partitions = plan_.config.partitions,
                           .chunks = plan_.config.chunks,
                           .microbatches = plan_.config.microbatches,
                           .replicas = replicas(),
                           .tensor_parallel = plan_.layout.size(Axis::tensor),
                           .recompute = std::string(to_string(plan_.config.recompute)),
                           .recompute_units = to_string(plan_.config.recompute_units),
                           .batch_norm = std::string(to_string(plan_.config.batch_norm)),
                           .bubble_predicted = plan_.prediction.replay.bubble(),
                           .link_latency_us = plan_.request.rules.link.latency_us,
                           .link_bytes_per_us = plan_.request.rules.link.bytes_per_us};
    const Result<std::vector<std::vector<parallel::ComputedAction>>> last_steps = last_step_of_ranks();
    if (!last_steps.ok()) return last_steps.status();
    const double longest_s = std::ranges::max(all, {}, &RankFigures::step_s).step_s;
    double busy_s = 0;
    for (int rank = 0; rank < job_.size(); ++rank) {
      const RankFigures& each = all[static_cast<std::size_t>(rank)];
      const pipeline::Position position = plan_.layout.position(rank);
      RankResult shown{.rank = rank,
                       .stage = position.stage,
                       .replica = position.replica,
                       .slice = position.slice,
                       .peak_bytes = each.peak_bytes,
                       .fingerprint = each.fingerprint};
      const auto steps = static_cast<double>(std::max<std::int64_t>(each.steps, 1));
      shown.busy_ms = 1e3 * each.busy_s / steps;
      shown.waiting_ms = 1e3 * each.waiting_s / steps;
      shown.idle_ms = 1e3 * (longest_s - each.busy_s - each.waiting_s) / steps;
      shown.last_step = (*last_steps)[static_cast<std::size_t>(rank)];
      for (const int stage : plan_.stages_at(position.stage)) {
        const pipeline::Stage& units = plan_.partition.stages[static_cast<std::size_t>(stage)];
        shown.first_units.push_back(plan_.profile.units[static_cast<std::size_t>(units.first)].name);
        shown.peak_bytes_predicted += units.bytes;
      }
      busy_s += each.busy_s;
      figures.peak_bytes = std::max(figures.peak_bytes, shown.peak_bytes);
      figures.peak_bytes_predicted = std::max(figures.peak_bytes_predicted, shown.peak_bytes_predicted);
      figures.ranks.push_back(std::move(shown));
    }
    if (longest_s > 0) figures.bubble = 1 - busy_s / longest_s / job_.size();
    result.pipeline = std::move(figures);
    return {};
  }

  [[nodiscard]] int replicas() const { return plan_.layout.size(Axis::replica); }

  inline static const ReplicaOptions kShown{"shoal", "pipeline"};

  Job& job_;
  const PipelinePlan& plan_;
  const models::ModelInfo& model_;
  const data::Located& images_;
  const TrainOptions& options_;
  CommonStop common_stop_;
  RunLog log_;
  EpochPlan course_;
  const PipelineCheckpoint checkpoint_;
  Schedule schedule_;
  std::int64_t steps_before_ = 0;  // of the checkpoint
  std::unique_ptr<StageTrainer> trainer_;
  bool warm_ = false;
  bool over_ = false;  // options.seconds have passed
  steady_clock::time_point start_;
  Figures figures_;  // of the epoch
  StageUse use_;     // in its measured turns
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train_pipeline(Job& job, const PipelinePlan& plan, const models::ModelInfo& model, const data::Located& images,
                            const TrainOptions& options, const std::atomic<bool>& stop) {
  return PipelineRun(job, plan, model, images, options, stop).run();
}

}  // namespace shoal::train
