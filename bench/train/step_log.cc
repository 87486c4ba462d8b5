#include "bench/train/step_log.h"

#include <utility>

namespace shoal::train {

void StepLog::begin_turn(TurnStart start) {
  starts_[static_cast<std::size_t>(++turn_) % starts_.size()] = std::move(start);
  const std::int64_t needed = start_of(turn_ - 1).step;
  std::erase_if(steps_, [needed](const OwnStep& step) { return step.number < needed; });
}

const TurnStart& StepLog::start_of(std::int64_t turn) const {
  const std::optional<TurnStart>& start = starts_[static_cast<std::size_t>(turn) % starts_.size()];
  return start.has_value() ? *start : *starts_[static_cast<std::size_t>(turn_) % starts_.size()];
}

std::vector<double> StepLog::losses(std::int64_t from, std::int64_t to) const {
  std::vector<double> found;
  for (const OwnStep& step : steps_) {
    if (step.number > from && step.number <= to) found.push_back(step.loss);
  }
  return found;
}

std::optional<OwnStep::Time> StepLog::end_of(std::int64_t to) const {
  std::optional<OwnStep::Time> end;
  for (const OwnStep& step : steps_) {
    if (step.number <= to) end = step.end;
  }
  return end;
}

void StepLog::go_back(const TrainingState& to) {
  turn_ = to.turn;
  std::erase_if(steps_, [&](const OwnStep& step) { return step.number > to.step; });
}

}  // namespace shoal::train
