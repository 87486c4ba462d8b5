#include "bench/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>

#include "bench/train/common_stop.h"
#include "bench/train/entry.h"
#include "bench/train/epoch_plan.h"
#include "bench/train/figures.h"
#include "bench/train/gpu_meter.h"
#include "bench/train/regroup.h"
#include "bench/train/run_checkpoint.h"
#include "bench/train/run_log.h"
#include "bench/train/schedule.h"
#include "bench/train/step_log.h"
#include "bench/train/trace_file.h"
#include "bench/train/turn.h"

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

/// Runs all epochs. Functions return early with status or interrupted set in the outcome.
class Run {
 public:
  Run(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
      const std::atomic<bool>& stop)
      : job_(job),
        model_(model),
        images_(images),
        options_(options),
        stop_(stop),
        gpu_(job.control->local_rank()),
        log_(options),
        course_(images.train.size(), static_cast<std::size_t>(options.batch) * static_cast<std::size_t>(options.accumulate),
                job.size(), options.epochs),
        schedule_(schedule_of(options, course_.epoch_steps())) {
    meet();
    outcome_.gpu_why_not = gpu_.why_not();
  }

  TrainOutcome run() {
    outcome_.status = prepare();
    if (!outcome_.status.ok()) return std::move(outcome_);
    log_.start(start_ = steady_clock::now());
    steps_before_ = steps_made(entries_);
    keep_books();
    do {
      run_epochs();
      if (outcome_.status.ok() && together_) write_trace();
      if (outcome_.status.ok() && options_.survives()) part();
    } while (options_.survives() && !outcome_.status.ok() && go_on_without_the_lost());
    if (options_.survives() && !outcome_.status.ok() && outcome_.results.size() == books_.start_of(books_.turn()).results) {
      end_epochs();
    }
    log_.finish();
    outcome_.misses_files = log_.misses_files();
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] bool going() const { return outcome_.status.ok() && !outcome_.interrupted; }
  [[nodiscard]] std::int64_t total_steps() const {
    return options_.steps > 0 ? std::min(course_.end(), options_.steps) : course_.end();
  }
  [[nodiscard]] int epoch() const { return 1 + static_cast<int>(course_.pass()); }
  [[nodiscard]] double rate_of(std::int64_t step) const { return learning_rate(schedule_, course_.scheduled(step)); }

  Status prepare() {
    if (!options_.log.empty()) {
      if (const Status opened = of_rank_0(job_, log_.open(), options_.log); !opened.ok()) return opened;
    }
    for (const ReplicaOptions& wanted : options_.replicas) {
      Result<std::unique_ptr<Replica>> made = Replica::make(job_, wanted, model_, images_.train, options_);
      if (!made.ok()) return made.status();
      entries_.push_back({.replica = std::move(made).value()});
    }
    if (!options_.trace.empty() && total_steps() <= kUnmeasuredSteps) {
      return Status(StatusCode::invalid_argument,
                    "--trace: " + std::to_string(total_steps()) + " steps are too few: the first two are not measured");
    }
    if (options_.resume.empty()) return {};
    if (const Status resumed = resume_run(job_, settings(), course_, entries_, options_.resume); !resumed.ok()) return resumed;
    if (fewest_steps(entries_) < total_steps()) return {};
    return Status(StatusCode::invalid_argument, options_.resume + ": has made " + std::to_string(fewest_steps(entries_)) +
                                                    " steps already; use more --epochs or --steps");
  }

  [[nodiscard]] nlohmann::json settings() const { return run_settings(job_, model_, images_.train, options_); }

  void save() {
    if (options_.checkpoint.empty()) return;
    outcome_.status = save_run(job_, settings(), course_, entries_, options_.checkpoint);
  }

  void write_trace() {
    if (options_.trace.empty()) return;
    const std::string title = model_.name + ", batch " + std::to_string(options_.batch) + ", " + std::to_string(job_.size()) +
                              " ranks on " + std::to_string(job_.control->nodes()) + " hosts";
    const Result<nlohmann::json> trace = gather_trace(*job_.control, entries_, title);
    if (outcome_.status = trace.status(); !trace.ok() || job_.rank() != 0) return;
    if (const Status written = write_json(*trace, options_.trace); !written.ok()) log_.do_without(written, "trace");
  }

  /// Rank 0's clock decides. Called between rounds, so that all replicas have made the same number of steps.
  bool time_is_over() {
    if (options_.seconds <= 0) return false;
    std::uint8_t over = seconds_since(start_) >= options_.seconds ? 1 : 0;
    outcome_.status = job_.control->broadcast(&over, 1, DataType::uint8, 0);
    over_ = over != 0 || !outcome_.status.ok();
    return over_;
  }

  void run_epochs() {
    while (going() && (epoch_open_ || (fewest_steps(entries_) < total_steps() && !over_))) {
      if (!std::exchange(epoch_open_, true)) {
        for (Entry& entry : entries_) entry.epoch = {};
      }
      run_epoch();
      if (options_.survives() && !outcome_.status.ok()) return;  // other ranks may be at another step
      end_epochs();
      if (outcome_.status.ok() && together_) save();
      if (!outcome_.status.ok()) return;
      epoch_open_ = false;
      if (fewest_steps(entries_) >= course_.pass_end()) course_.next_pass();
    }
  }

  /// Runs the rest of the epoch.
  void run_epoch() {
    const std::int64_t end = std::min(course_.pass_end(), total_steps());
    for (Entry& entry : entries_) {
      if (entry.step() < end) entry.replica->begin_epoch(course_);
    }
    for (int round = 0; going() && fewest_steps(entries_) < end && !time_is_over(); ++round) {
      for (std::size_t i = 0; i < entries_.size() && going(); ++i) {
        // Alternates the order between rounds, so that no replica always runs after the same other one.
        Entry& entry = entries_[round % 2 == 0 ? i : entries_.size() - 1 - i];
        const std::int64_t turn = std::min<std::int64_t>(entry.warm ? options_.block : kUnmeasuredSteps, end - entry.step());
        if (turn > 0) run_turn(entry, turn);
      }
    }
  }

  void end_epochs() {
    for (Entry& entry : entries_) {
      if (!entry.epoch.losses.empty()) end_epoch(entry);
    }
  }

  void run_turn(Entry& entry, std::int64_t steps) {
    if (outcome_.status = job_.control->barrier(); !outcome_.status.ok()) return;
    keep_books();
    TurnEnd end = make_turn(entry, steps,
                            {.common_stop = *common_stop_,
                             .gpu = gpu_,
                             .books = options_.survives() ? &books_ : nullptr,
                             .rate_of = [this](std::int64_t step) { return rate_of(step); },
                             .wants_trace = !options_.trace.empty()});
    outcome_.status = end.status;
    outcome_.interrupted = end.stopped;
    if (!end.broke_off.ok()) {
      together_ = false;
      outcome_.interrupted = stop_ && !options_.survives();
      if (!outcome_.interrupted) outcome_.status = end.broke_off;
    } else if (end.status.ok()) {
      finish_turn(entry, std::move(end.turn));
    }
  }

  /// Combines the ranks' figures.
  void finish_turn(Entry& entry, Turn turn) {
    if (outcome_.status = average(*job_.control, turn); !outcome_.status.ok()) return;
    turn.images_per_s =
        static_cast<double>(turn.sums.steps) * options_.batch * options_.accumulate * job_.size() / turn.sums.seconds;
    entry.epoch.add(turn);
    outcome_.turns.push_back(log_.tell(entry.replica->wanted(), turn,
                                       {.epoch = epoch(),
                                        .step = entry.step(),
                                        .steps = total_steps(),
                                        .learning_rate = rate_of(entry.step() - 1),
                                        .remaining_s = remaining_seconds()}));
  }

  /// For all replicas, at their average speed so far.
  [[nodiscard]] double remaining_seconds() const {
    const std::int64_t made = steps_made(entries_);
    const auto missing = total_steps() * static_cast<std::int64_t>(entries_.size()) - made;
    return seconds_since(start_) / static_cast<double>(made - steps_before_) *
           static_cast<double>(std::max<std::int64_t>(missing, 0));
  }

  void end_epoch(Entry& entry) {
    EpochResult result = to_result(entry.epoch);
    result.backend = entry.replica->wanted().backend;
    result.overlap = entry.replica->wanted().overlap;
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
    result.knows_comm = entry.replica->knows_comm();
    if (options_.evaluate && going()) {
      const Result<double> share = entry.replica->accuracy(images_.test);
      if (share.ok())
        result.accuracy = share.value();
      else
        outcome_.status = share.status();
    }
    log_.tell(result, entry.step());
    outcome_.results.push_back(std::move(result));
  }

  /// Before the ranks separate: gathers all fingerprints; the barrier ensures that no rank leaves while another one needs it.
  void part() {
    const std::uint64_t own = entries_.front().replica->fingerprint();
    outcome_.fingerprints.assign(static_cast<std::size_t>(job_.size()), 0);
    outcome_.status = job_.control->all_gather(&own, outcome_.fingerprints.data(), 1, DataType::uint64);
    if (outcome_.status.ok()) outcome_.status = job_.control->barrier();
  }

  /// Creates the objects that depend on the set of ranks.
  void meet() {
    common_stop_.emplace(*job_.control, stop_);
    log_.be(job_.rank());
  }

  /// Records the start of a turn.
  void keep_books() {
    if (!options_.survives()) return;
    const Entry& entry = entries_.front();
    books_.begin_turn({.step = entry.step(),
                       .course = course_,
                       .epoch_open = epoch_open_,
                       .epoch = entry.epoch,
                       .results = outcome_.results.size(),
                       .turns = outcome_.turns.size()});
  }

  /// After a failure. Returns false if no rank was lost, or if the survivors cannot regroup.
  bool go_on_without_the_lost() {
    Replica& replica = *entries_.front().replica;
    Loss loss;
    log_.finish();
    outcome_.status = regroup(job_, replica, outcome_.status, loss.ranks, [&] {
      meet();
      const Result<Restart> restart = go_back_together(job_, replica, books_);
      if (!restart.ok()) return restart.status();
      take_from_books(*restart);
      loss.step = restart->at.step;
      loss.left = job_.size();
      loss.seconds = seconds_since(books_.end_of(loss.step).value_or(start_));
      return Status();
    });
    if (!outcome_.status.ok()) return false;
    log_.tell(loss);
    outcome_.losses.push_back(std::move(loss));
    return true;
  }

  /// Restores the state at the start of that turn, plus the losses of those of its steps that all ranks have completed.
  void take_from_books(const Restart& restart) {
    const TurnStart& start = books_.start_of(restart.at.turn);
    books_.go_back(restart.at);
    course_ = start.course;
    course_.go_on_with(job_.size(), restart.at.step);
    epoch_open_ = start.epoch_open;
    Entry& entry = entries_.front();
    entry.epoch = start.epoch;
    entry.epoch.losses.insert(entry.epoch.losses.end(), restart.losses.begin(), restart.losses.end());
    entry.traced = !entry.trace.empty();
    outcome_.results.resize(start.results);
    outcome_.turns.erase(outcome_.turns.begin() + static_cast<std::ptrdiff_t>(start.turns), outcome_.turns.end());
    over_ = false;
    together_ = true;
    outcome_.interrupted = false;
  }

  Job& job_;
  const models::ModelInfo& model_;
  const data::Located& images_;
  const TrainOptions& options_;
  const std::atomic<bool>& stop_;
  std::optional<CommonStop> common_stop_;
  GpuMeter gpu_;
  RunLog log_;
  EpochPlan course_;
  const Schedule schedule_;
  std::vector<Entry> entries_;
  bool epoch_open_ = false;
  std::int64_t steps_before_ = 0;  // of all replicas, in the checkpoint
  steady_clock::time_point start_;
  // Used only if ranks may be lost.
  StepLog books_;
  bool over_ = false;     // options.seconds have passed
  bool together_ = true;  // all ranks are at the same step
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                   const std::atomic<bool>& stop) {
  return Run(job, model, images, options, stop).run();
}

}  // namespace shoal::train
