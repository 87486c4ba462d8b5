#include "bench/train/run_log.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace shoal::train {
namespace {

/// The backend's name, with the overlap if the name alone is ambiguous.
std::string shown_name(const ReplicaOptions& who, const std::vector<ReplicaOptions>& all) {
  return std::ranges::count(all, who.backend, &ReplicaOptions::backend) == 1 ? who.backend : who.name();
}

}  // namespace

void RunLog::be(int rank) {
  rank_ = rank;
  progress_.emplace(rank == 0);
}

Status RunLog::open() { return rank_ == 0 && !options_.log.empty() ? file_.open(options_.log) : Status(); }

nlohmann::json RunLog::tell(const ReplicaOptions& who, const Turn& turn, const Place& place) {
  progress_->show({.backend = shown_name(who, options_.replicas),
                   .epoch = place.epoch,
                   .epochs = options_.epochs,
                   .step = place.step,
                   .steps = place.steps,
                   .images_per_s = turn.images_per_s,
                   .loss = turn.losses.back(),
                   .remaining_s = place.remaining_s});
  nlohmann::json line = line_of("turn", to_json(turn));
  line.update({{"backend", who.backend},
               {"overlap", who.overlap},
               {"epoch", place.epoch},
               {"step", place.step},
               {"learning_rate", place.learning_rate},
               {"remaining_s", place.remaining_s}});
  note(line);
  return line;
}

void RunLog::tell(const EpochResult& result, std::int64_t step) {
  note(line_of("epoch", {{"backend", result.backend},
                         {"overlap", result.overlap},
                         {"epoch", result.epoch},
                         {"step", step},
                         {"images_per_s", or_null(result.images_per_s)},
                         {"loss", result.loss},
                         {"accuracy", or_null(result.accuracy)}}));
}

void RunLog::tell(const Loss& loss) {
  if (rank_ == 0 && !options_.log.empty() && !file_.is_open()) (void)file_.open(options_.log, /*append=*/true);
  progress_->say(describe(loss));
  note(line_of("loss", to_json(loss)));
}

nlohmann::json RunLog::line_of(const char* event, const nlohmann::json& details) const {
  nlohmann::json line{{"event", event},
                      {"time_s", std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()}};
  line.update(details);
  return line;
}

void RunLog::note(const nlohmann::json& line) {
  if (const Status written = file_.write(line); !written.ok()) do_without(written, "log");
}

void RunLog::do_without(const Status& why, const char* what) {
  std::fprintf(stderr, "shoal_train: %s; training continues without the %s\n", why.message().c_str(), what);
  misses_files_ = true;
}

}  // namespace shoal::train
