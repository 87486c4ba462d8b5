#include "bench/train/run_checkpoint.h"

#include <exception>
#include <utility>

#include "bench/train/checkpoint.h"
#include "bench/train/survival.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

constexpr const char* kCourse = "course";  // this setting is not compared

Status in_file(const std::string& path, const Status& status) {
  return status.ok() ? status : Status(status.code(), path + ": " + status.message());
}

}  // namespace

nlohmann::json run_settings(const Job& job, const models::ModelInfo& model, const data::Dataset& images,
                            const TrainOptions& options) {
  nlohmann::json made{{"model", model.name},
                      {"dataset", images.name},
                      {"images", images.size()},
                      {"ranks", job.size()},
                      {"batch", options.batch},
                      {"accumulate", options.accumulate},
                      {"augment", options.augment},
                      {"precision", options.precision},
                      {"seed", options.seed},
                      {"optimizer", options.optimizer},
                      {"momentum", options.momentum},
                      {"weight_decay", options.weight_decay_or_default()},
                      {"lr", options.start_learning_rate()},
                      {"schedule", options.schedule}};
  if (options.schedule != "constant") made["epochs"] = options.epochs;
  if (options.schedule == "step")
    made.update({{"schedule_epochs", options.schedule_epochs}, {"schedule_factor", options.schedule_factor}});
  return made;
}

Status save_run(const Job& job, nlohmann::json settings, const EpochPlan& course, const std::vector<Entry>& entries,
                const std::string& path) {
  Checkpoint checkpoint{.settings = std::move(settings), .replicas = {}};
  if (course.has_other_ranks()) checkpoint.settings[kCourse] = course.numbers();
  try {
    for (const Entry& entry : entries) checkpoint.replicas[entry.replica->wanted().name()] = entry.replica->state();
  } catch (const std::exception& error) {
    return {code_of(error), "before the checkpoint: " + torch::plain_message(error)};
  }
  return of_rank_0(job, job.rank() == 0 ? save_checkpoint(checkpoint, path) : Status(), path);
}

Status resume_run(const Job& job, const nlohmann::json& settings, EpochPlan& course, const std::vector<Entry>& entries,
                  const std::string& path) {
  const Result<Checkpoint> checkpoint = load_checkpoint(path, *job.control);
  if (!checkpoint.ok()) return checkpoint.status();
  if (const Status same = check_settings(*checkpoint, settings); !same.ok()) return same;
  Result<std::vector<std::int64_t>> known = std::vector<std::int64_t>();
  if (const auto course_then = checkpoint->settings.find(kCourse); course_then != checkpoint->settings.end())
    known = EpochPlan::read_numbers(*course_then);
  if (!known.ok()) return in_file(path, known.status());
  for (const Entry& entry : entries) {
    const std::string name = entry.replica->wanted().name();
    const auto found = checkpoint->replicas.find(name);
    if (found == checkpoint->replicas.end()) return {StatusCode::invalid_argument, path + ": contains no state of " + name};
    try {
      entry.replica->restore(found->second);
    } catch (const std::exception& error) {
      return {StatusCode::invalid_argument, path + ": " + torch::plain_message(error)};
    }
  }
  return in_file(path, course.go_to(fewest_steps(entries), *known));
}

}  // namespace shoal::train
