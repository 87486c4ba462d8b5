#include "torch_plugin/train/trainer.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/Parallel.h>
#include <sys/resource.h>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/train/checkpoint.h"
#include "torch_plugin/train/common_stop.h"
#include "torch_plugin/train/contestant.h"
#include "torch_plugin/train/course.h"
#include "torch_plugin/train/gpu_meter.h"
#include "torch_plugin/train/progress.h"
#include "torch_plugin/train/schedule.h"

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

constexpr std::int64_t kUnmeasuredSteps = 2;  // the first makes connections, the second regroups the gradients

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

/// Sums over the steps of one turn or one epoch of one backend.
struct Measured {
  std::int64_t steps = 0;
  double seconds = 0;
  double cpu_s = 0;
  std::optional<double> gpu_percent = std::nullopt;
  CommTimes comm;
};

/// What is known of a contestant in the epoch in progress.
struct Figures {
  Measured sums = {};
  std::vector<double> turn_rates = {};    ///< images per second of all ranks, by turn
  std::vector<double> gpu_percents = {};  ///< by turn
  std::vector<double> losses = {};        ///< by step, mean over the ranks
};

/// A contestant and its figures.
struct Entry {
  std::unique_ptr<Contestant> contestant;
  bool warm = false;    ///< it has made its first steps in this process
  bool traced = false;  ///< so `trace` is known
  std::vector<TraceEvent> trace = {};
  Figures epoch = {};

  [[nodiscard]] std::int64_t step() const { return contestant->step(); }
};

/// What was written down when a turn began, of the one contestant that there is where ranks may be lost.
struct Books {
  std::int64_t step = 0;
  Course course;
  bool epoch_open = false;
  Figures epoch = {};
  std::size_t results = 0;  ///< their number, as of the next
  std::size_t turns = 0;
};

/// A step that this rank has made.
struct OwnStep {
  std::int64_t number;  ///< from 1
  double loss;
  steady_clock::time_point end;
};

/// The mean over the ranks of each of `values`.
Status average(Communicator& control, std::vector<double>& values) {
  return control.all_reduce(values.data(), values.data(), values.size(), DataType::float64, ReduceOp::avg);
}

nlohmann::json or_null(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

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
        course_(images.train.size(), static_cast<std::size_t>(options.batch) * static_cast<std::size_t>(options.accumulate),
                job.size(), options.epochs) {
    meet();
    outcome_.gpu_why_not = gpu_.why_not();
    schedule_ = {.kind = options.schedule,
                 .start = options.start_learning_rate(),
                 .step_factor = options.schedule_factor,
                 .step_epochs = options.schedule_epochs,
                 .epoch_steps = course_.epoch_steps(),
                 .epochs = options.epochs};
  }

  TrainOutcome run() {
    outcome_.status = prepare();
    if (!outcome_.status.ok()) return std::move(outcome_);
    start_ = steady_clock::now();
    steps_before_ = steps_made();
    keep_books();
    do {
      run_epochs();
      if (outcome_.status.ok() && together_) write_trace();
      if (outcome_.status.ok() && options_.survives()) part();
    } while (options_.survives() && !outcome_.status.ok() && go_on_without_the_lost());
    if (options_.survives() && !outcome_.status.ok() && outcome_.results.size() == books_of(turn_).results) {
      end_epochs();
    }
    progress_->finish();
    return std::move(outcome_);
  }

 private:
  [[nodiscard]] bool going() const { return outcome_.status.ok() && !outcome_.interrupted; }
  [[nodiscard]] std::int64_t fewest_steps() const { return std::ranges::min_element(entries_, {}, &Entry::step)->step(); }
  [[nodiscard]] std::int64_t total_steps() const {
    return options_.steps > 0 ? std::min(course_.end(), options_.steps) : course_.end();
  }
  [[nodiscard]] int epoch() const { return 1 + static_cast<int>(course_.pass()); }
  [[nodiscard]] double rate_of(std::int64_t step) const { return learning_rate(schedule_, course_.scheduled(step)); }
  [[nodiscard]] std::int64_t steps_made() const {
    std::int64_t sum = 0;
    for (const Entry& each : entries_) sum += each.step();
    return sum;
  }

  /// What must be the same for a checkpoint's training to go on bit for bit.
  [[nodiscard]] nlohmann::json settings() const {
    nlohmann::json made{{"model", model_.name},           {"dataset", images_.train.name},
                        {"images", images_.train.size()}, {"ranks", job_.size()},
                        {"batch", options_.batch},        {"accumulate", options_.accumulate},
                        {"augment", options_.augment},    {"precision", options_.precision},
                        {"seed", options_.seed},          {"optimizer", options_.optimizer},
                        {"momentum", options_.momentum},  {"weight_decay", options_.weight_decay_or_default()},
                        {"lr", schedule_.start},          {"schedule", schedule_.kind}};
    if (schedule_.kind != "constant") made["epochs"] = options_.epochs;
    if (schedule_.kind == "step")
      made.update({{"schedule_epochs", options_.schedule_epochs}, {"schedule_factor", options_.schedule_factor}});
    return made;
  }

  Status prepare() {
    if (job_.rank() == 0 && !options_.log.empty()) {
      log_.open(options_.log);
      if (!log_) return system_error("write " + options_.log, errno);
    }
    for (const ContestantOptions& wanted : options_.contestants) {
      Result<std::unique_ptr<Contestant>> made = Contestant::make(job_, wanted, model_, images_.train, options_);
      if (!made.ok()) return made.status();
      entries_.push_back({.contestant = std::move(made).value()});
    }
    if (!options_.trace.empty() && total_steps() <= kUnmeasuredSteps) {
      return Status(StatusCode::invalid_argument,
                    "--trace: " + std::to_string(total_steps()) + " steps are too few: the first two are not like the others");
    }
    if (options_.resume.empty()) return {};
    const Result<Checkpoint> checkpoint = load_checkpoint(options_.resume, *job_.control);
    if (!checkpoint.ok()) return checkpoint.status();
    if (const Status same = check_settings(*checkpoint, settings()); !same.ok()) return same;
    for (const Entry& entry : entries_) {
      const std::string name = entry.contestant->wanted().name();
      const auto found = checkpoint->contestants.find(name);
      if (found == checkpoint->contestants.end())
        return Status(StatusCode::invalid_argument, options_.resume + ": holds nothing of " + name);
      try {
        entry.contestant->restore(found->second);
      } catch (const std::exception& error) {
        return Status(StatusCode::invalid_argument, options_.resume + ": " + torch::plain_message(error));
      }
    }
    course_.go_to(fewest_steps(), checkpoint->settings.value(kCourse, std::vector<std::int64_t>()));
    if (fewest_steps() < total_steps()) return {};
    return Status(StatusCode::invalid_argument, options_.resume + ": has made " + std::to_string(fewest_steps()) +
                                                    " steps already; give more --epochs or --steps");
  }

  void save() {
    if (options_.checkpoint.empty()) return;
    Checkpoint checkpoint{.settings = settings(), .contestants = {}};
    if (course_.has_lost_ranks()) checkpoint.settings[kCourse] = course_.numbers();
    try {
      for (const Entry& entry : entries_) checkpoint.contestants[entry.contestant->wanted().name()] = entry.contestant->state();
    } catch (const std::exception& error) {
      outcome_.status = Status(code_of(error), "before the checkpoint: " + torch::plain_message(error));
      return;
    }
    std::int32_t failure = 0;
    if (job_.rank() == 0) {
      outcome_.status = save_checkpoint(checkpoint, options_.checkpoint);
      failure = static_cast<std::int32_t>(outcome_.status.code());
    }
    const Status told = job_.control->broadcast(&failure, 1, DataType::int32, 0);
    if (!outcome_.status.ok()) return;
    outcome_.status = told;
    if (told.ok() && failure != 0)
      outcome_.status = Status(static_cast<StatusCode>(failure), options_.checkpoint + ": rank 0 could not write it");
  }

  void write_trace() {
    if (options_.trace.empty()) return;
    // Ranks of one host have one clock; with more hosts each starts its own when all have come here.
    if (outcome_.status = job_.control->barrier(); !outcome_.status.ok()) return;
    const auto zero = job_.control->nodes() == 1 ? steady_clock::time_point() : steady_clock::now();
    nlohmann::json all = nlohmann::json::array();
    int process = 0;
    for (const Entry& entry : entries_) {
      Result<nlohmann::json> events =
          gather_trace(*job_.control, entry.contestant->wanted().name(), process, entry.trace, zero);
      if (outcome_.status = events.status(); !events.ok()) return;
      for (nlohmann::json& event : *events) all.push_back(std::move(event));
      process += job_.size();
    }
    double first_us = std::numeric_limits<double>::max();
    for (const nlohmann::json& event : all) first_us = std::min(first_us, event.value("ts", first_us));
    for (nlohmann::json& event : all) {
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - first_us;
    }
    if (job_.rank() != 0) return;
    const std::string title = model_.name + ", batch " + std::to_string(options_.batch) + ", " + std::to_string(job_.size()) +
                              " ranks on " + std::to_string(job_.control->nodes()) + " hosts";
    const Status written =
        write_json({{"traceEvents", all}, {"displayTimeUnit", "ms"}, {"otherData", {{"title", title}}}}, options_.trace);
    if (!written.ok()) do_without(written, "trace");
  }

  /// Rank 0's clock counts. Between rounds, so that all contestants have made as many steps.
  bool time_is_over() {
    if (options_.seconds <= 0) return false;
    std::uint8_t over = seconds_since(start_) >= options_.seconds ? 1 : 0;
    outcome_.status = job_.control->broadcast(&over, 1, DataType::uint8, 0);
    over_ = over != 0 || !outcome_.status.ok();
    return over_;
  }

  void run_epochs() {
    while (going() && (epoch_open_ || (fewest_steps() < total_steps() && !over_))) {
      if (!std::exchange(epoch_open_, true)) {
        for (Entry& entry : entries_) entry.epoch = {};
      }
      run_epoch();
      if (options_.survives() && !outcome_.status.ok()) return;  // the others may be elsewhere
      end_epochs();
      if (outcome_.status.ok() && together_) save();
      if (!outcome_.status.ok()) return;
      epoch_open_ = false;
      if (fewest_steps() >= course_.pass_end()) course_.next_pass();
    }
  }

  /// What is left of it.
  void run_epoch() {
    const std::int64_t end = std::min(course_.pass_end(), total_steps());
    for (Entry& entry : entries_) {
      if (entry.step() < end) entry.contestant->begin_epoch(course_);
    }
    for (int round = 0; going() && fewest_steps() < end && !time_is_over(); ++round) {
      for (std::size_t i = 0; i < entries_.size() && going(); ++i) {
        // Every other round in the other order, so that nobody always comes after the same one.
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
    Contestant& contestant = *entry.contestant;
    if (outcome_.status = job_.control->barrier(); !outcome_.status.ok()) return;
    keep_books();
    Measured turn;
    std::vector<double> losses;
    const bool wants_trace = !options_.trace.empty() && entry.warm && !entry.traced;
    const std::int64_t traced_step = wants_trace ? std::min<std::int64_t>(1, steps - 1) : -1;
    const double cpu_before = cpu_seconds();
    (void)gpu_.take_percent();
    const auto start = steady_clock::now();
    try {
      for (bool stopping = false; turn.steps < steps && !stopping; ++turn.steps) {
        if (outcome_.status = common_stop_->ask(); !outcome_.status.ok()) return;
        // Not the first of a turn: averages of the one before shall be under way.
        const bool trace = turn.steps == traced_step;
        const double rate = rate_of(contestant.step());
        losses.push_back(trace ? contestant.make_traced_step(rate) : contestant.make_step(rate));
        if (options_.survives()) own_steps_.push_back({contestant.step(), losses.back(), steady_clock::now()});
        entry.traced = entry.traced || trace;
        add(turn.comm, contestant.take_comm());
        const Result<bool> answer = common_stop_->answer();
        if (!answer.ok()) outcome_.status = answer.status();
        stopping = !answer.ok() || answer.value();
        outcome_.interrupted = stopping && answer.ok();
      }
      contestant.flush();  // a turn pays for all it has begun
      add(turn.comm, contestant.take_comm());
      if (entry.traced && entry.trace.empty()) entry.trace = contestant.finish_trace();
    } catch (const std::exception& error) {
      together_ = false;
      outcome_.interrupted = stop_ && !options_.survives();
      if (!outcome_.interrupted)
        outcome_.status =
            Status(code_of(error), contestant.wanted().backend + ", step " + std::to_string(contestant.step() + 1) + ": " +
                                       torch::plain_message(error));
    }
    if (!together_ || !outcome_.status.ok()) return;
    turn.seconds = seconds_since(start);
    turn.cpu_s = cpu_seconds() - cpu_before;
    turn.gpu_percent = gpu_.take_percent();
    finish_turn(entry, turn, std::move(losses), std::exchange(entry.warm, true));
  }

  /// Brings the ranks' figures of a turn together.
  void finish_turn(Entry& entry, const Measured& turn, std::vector<double> losses, bool measured) {
    std::vector<double> figures = std::move(losses);
    const std::size_t steps = figures.size();
    const double knows_gpu = turn.gpu_percent.has_value() ? 1 : 0;
    for (const double figure :
         {turn.seconds, turn.cpu_s, turn.comm.exposed_s, turn.comm.busy_s, knows_gpu, turn.gpu_percent.value_or(0)})
      figures.push_back(figure);
    if (outcome_.status = average(*job_.control, figures); !outcome_.status.ok()) return;
    Figures& known = entry.epoch;
    known.losses.insert(known.losses.end(), figures.begin(), figures.begin() + static_cast<std::ptrdiff_t>(steps));
    const double seconds = figures[steps];
    const std::optional<double> gpu_percent =  // of the ranks that know it
        figures[steps + 4] > 0 ? std::optional(figures[steps + 5] / figures[steps + 4]) : std::nullopt;
    const double rate = static_cast<double>(turn.steps) * options_.batch * options_.accumulate * job_.size() / seconds;
    if (measured) {
      known.sums.steps += turn.steps;
      known.sums.seconds += seconds;
      known.sums.cpu_s += figures[steps + 1];
      known.sums.comm.exposed_s += figures[steps + 2];
      known.sums.comm.busy_s += figures[steps + 3];
      known.sums.comm.bytes += turn.comm.bytes;
      known.turn_rates.push_back(rate);
      if (gpu_percent.has_value()) known.gpu_percents.push_back(*gpu_percent);
    }
    const std::int64_t made = steps_made();
    const auto missing = total_steps() * static_cast<std::int64_t>(entries_.size()) - made;
    const double remaining_s = seconds_since(start_) / static_cast<double>(made - steps_before_) *
                               static_cast<double>(std::max<std::int64_t>(missing, 0));
    progress_->show({.backend = shown_name(entry),
                     .epoch = epoch(),
                     .epochs = options_.epochs,
                     .step = entry.step(),
                     .steps = total_steps(),
                     .images_per_s = rate,
                     .loss = known.losses.back(),
                     .remaining_s = remaining_s});
    const bool knows = entry.contestant->knows_comm();
    const nlohmann::json line{{"event", "turn"},
                              {"time_s", seconds_since(start_)},
                              {"backend", entry.contestant->wanted().backend},
                              {"overlap", entry.contestant->wanted().overlap},
                              {"epoch", epoch()},
                              {"step", entry.step()},
                              {"steps", turn.steps},
                              {"measured", measured},
                              {"seconds", seconds},
                              {"images_per_s", rate},
                              {"cpu_s", figures[steps + 1]},
                              {"gpu_percent", or_null(gpu_percent)},
                              {"comm_exposed_s", knows ? nlohmann::json(figures[steps + 2]) : nlohmann::json(nullptr)},
                              {"comm_busy_s", knows ? nlohmann::json(figures[steps + 3]) : nlohmann::json(nullptr)},
                              {"bytes", turn.comm.bytes},
                              {"loss", known.losses.back()},
                              {"learning_rate", rate_of(entry.step() - 1)},
                              {"remaining_s", remaining_s}};
    note(line);
    outcome_.turns.push_back(line);
  }

  /// A line of the log.
  void note(const nlohmann::json& line) {
    if (!log_.is_open()) return;
    log_ << line.dump() << std::endl;  // whoever follows the file sees it at once
    if (log_) return;
    do_without(system_error("write " + options_.log, errno), "log");
    log_.close();
  }

  /// A full disk is no reason to lose hours of training, on all ranks.
  void do_without(const Status& why, const char* what) {
    std::fprintf(stderr, "shoal_train: %s; training goes on without the %s\n", why.message().c_str(), what);
    outcome_.misses_files = true;
  }

  /// The backend's name, with the overlap where that name is not enough.
  [[nodiscard]] std::string shown_name(const Entry& entry) const {
    const ContestantOptions& wanted = entry.contestant->wanted();
    const auto same = std::ranges::count(options_.contestants, wanted.backend, &ContestantOptions::backend);
    return same == 1 ? wanted.backend : wanted.name();
  }

  void end_epoch(Entry& entry) {
    const Figures& known = entry.epoch;
    EpochResult result;
    result.backend = entry.contestant->wanted().backend;
    result.overlap = entry.contestant->wanted().overlap;
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
    result.steps = known.sums.steps;
    result.seconds = known.sums.seconds;
    result.images_per_s = median(known.turn_rates);
    result.knows_comm = entry.contestant->knows_comm();
    result.comm_exposed_s = known.sums.comm.exposed_s;
    result.comm_busy_s = known.sums.comm.busy_s;
    result.gpu_percent = median(known.gpu_percents);
    result.bytes = static_cast<double>(known.sums.comm.bytes);
    if (known.sums.seconds > 0) result.cpu_percent = 100 * known.sums.cpu_s / known.sums.seconds;
    for (const double loss : known.losses) result.loss += loss / static_cast<double>(known.losses.size());
    result.step_loss = known.losses;
    if (options_.evaluate && going()) {
      const Result<double> share = entry.contestant->accuracy(images_.test);
      if (share.ok())
        result.accuracy = share.value();
      else
        outcome_.status = share.status();
    }
    note({{"event", "epoch"},
          {"time_s", seconds_since(start_)},
          {"backend", result.backend},
          {"overlap", result.overlap},
          {"epoch", epoch()},
          {"step", entry.step()},
          {"images_per_s", or_null(result.images_per_s)},
          {"loss", result.loss},
          {"accuracy", or_null(result.accuracy)}});
    outcome_.results.push_back(std::move(result));
  }

  /// Before the ranks go their own ways: each tells what it has come to, and nobody leaves one behind that needs it.
  void part() {
    const std::uint64_t own = entries_.front().contestant->fingerprint();
    outcome_.fingerprints.assign(static_cast<std::size_t>(job_.size()), 0);
    outcome_.status = job_.control->all_gather(&own, outcome_.fingerprints.data(), 1, DataType::uint64);
    if (outcome_.status.ok()) outcome_.status = job_.control->barrier();
  }

  /// For what depends on who the ranks are.
  void meet() {
    common_stop_.emplace(*job_.control, stop_);
    progress_.emplace(job_.rank() == 0);
  }

  /// When a turn begins: all ranks have then finished the one before, so that none is more than one turn ahead.
  void keep_books() {
    if (!options_.survives()) return;
    const Entry& entry = entries_.front();
    books_[static_cast<std::size_t>(++turn_) % books_.size()] = Books{.step = entry.step(),
                                                                      .course = course_,
                                                                      .epoch_open = epoch_open_,
                                                                      .epoch = entry.epoch,
                                                                      .results = outcome_.results.size(),
                                                                      .turns = outcome_.turns.size()};
    const std::int64_t needed = books_of(turn_ - 1).step;
    std::erase_if(own_steps_, [needed](const OwnStep& step) { return step.number < needed; });
  }

  [[nodiscard]] const Books& books_of(std::int64_t turn) const {
    const std::optional<Books>& books = books_[static_cast<std::size_t>(turn) % books_.size()];
    return books.has_value() ? *books : *books_[static_cast<std::size_t>(turn_) % books_.size()];
  }

  /// After a failure. False where it is no loss of ranks, or the ranks that are left cannot find each other.
  bool go_on_without_the_lost() {
    Loss loss;
    progress_->finish();
    while (may_be_a_loss(outcome_.status)) {
      // Not all may need the lost one for what they are in; this rank they do.
      entries_.front().contestant->give_up();
      job_.control->abort("a rank was lost");
      Result<std::vector<int>> lost = shrink(job_);
      if (!lost.ok()) {
        outcome_.status = lost.status();
        if (lost.status().code() == StatusCode::timeout) return false;  // a rank lives and does not come
        continue;
      }
      if (lost->empty()) return false;
      loss.ranks.insert(loss.ranks.end(), lost->begin(), lost->end());
      meet();
      if (outcome_.status = go_back_together(loss); outcome_.status.ok()) {
        tell(std::move(loss));
        return outcome_.status.ok();
      }
    }
    return false;
  }

  /// All survivors write in the same books that they have made the same steps, and start from there.
  Status go_back_together(Loss& loss) {
    Entry& entry = entries_.front();
    const Result<Standing> agreed = agree(*job_.control, {.turn = turn_, .step = entry.contestant->complete_step()});
    if (!agreed.ok()) return agreed.status();
    const Books& books = books_of(agreed->turn);
    std::vector<double> losses;
    steady_clock::time_point end = start_;
    for (const OwnStep& step : own_steps_) {
      if (step.number > agreed->step) break;
      if (step.number > books.step) losses.push_back(step.loss);
      end = step.end;
    }
    if (!losses.empty()) {
      if (const Status status = average(*job_.control, losses); !status.ok()) return status;
    }
    try {
      entry.contestant->go_on_from(agreed->step);
    } catch (const std::exception& error) {
      return {code_of(error), "going on without lost ranks: " + torch::plain_message(error)};
    }
    if (const Status ready = job_.control->barrier(); !ready.ok()) return ready;
    turn_ = agreed->turn;
    course_ = books.course;
    course_.go_on_with(job_.size(), agreed->step);
    epoch_open_ = books.epoch_open;
    entry.epoch = books.epoch;
    entry.traced = !entry.trace.empty();
    entry.epoch.losses.insert(entry.epoch.losses.end(), losses.begin(), losses.end());
    outcome_.results.resize(books.results);
    outcome_.turns.erase(outcome_.turns.begin() + static_cast<std::ptrdiff_t>(books.turns), outcome_.turns.end());
    std::erase_if(own_steps_, [&](const OwnStep& step) { return step.number > agreed->step; });
    over_ = false;
    together_ = true;
    outcome_.interrupted = false;
    loss.step = agreed->step;
    loss.left = job_.size();
    loss.seconds = seconds_since(end);
    return {};
  }

  void tell(Loss loss) {
    if (job_.rank() == 0 && !options_.log.empty() && !log_.is_open()) log_.open(options_.log, std::ios::app);
    progress_->say(describe(loss));
    nlohmann::json line = to_json(loss);
    line.update({{"event", "loss"}, {"time_s", seconds_since(start_)}});
    note(line);
    outcome_.losses.push_back(std::move(loss));
  }

  static void add(CommTimes& sums, const CommTimes& more) {
    sums.exposed_s += more.exposed_s;
    sums.busy_s += more.busy_s;
    sums.bytes += more.bytes;
  }

  static constexpr const char* kCourse = "course";  // in a checkpoint

  Job& job_;
  const models::ModelInfo& model_;
  const data::Located& images_;
  const TrainOptions& options_;
  const std::atomic<bool>& stop_;
  std::optional<CommonStop> common_stop_;
  std::optional<Progress> progress_;
  GpuMeter gpu_;
  std::ofstream log_;
  Schedule schedule_;
  std::vector<Entry> entries_;
  Course course_;
  bool epoch_open_ = false;
  std::int64_t steps_before_ = 0;  // of all contestants, in the checkpoint
  steady_clock::time_point start_;
  // Where ranks may be lost.
  std::int64_t turn_ = 0;
  std::array<std::optional<Books>, 2> books_;  // of the last two turns
  std::vector<OwnStep> own_steps_;             // since the older ones
  bool over_ = false;                          // options.seconds have passed
  bool together_ = true;                       // all ranks are at the same step
  TrainOutcome outcome_;
};

}  // namespace

TrainOutcome train(Job& job, const models::ModelInfo& model, const data::Located& images, const TrainOptions& options,
                   const std::atomic<bool>& stop) {
  return Run(job, model, images, options, stop).run();
}

}  // namespace shoal::train
