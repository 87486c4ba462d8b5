#include "bench/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shoal::train {

Schedule schedule_of(const TrainOptions& options, std::int64_t epoch_steps) {
  return {.kind = options.schedule,
          .start = options.start_learning_rate(),
          .step_factor = options.schedule_factor,
          .step_epochs = options.schedule_epochs,
          .epoch_steps = epoch_steps,
          .epochs = options.epochs};
}

double learning_rate(const Schedule& schedule, std::int64_t step) {
  if (schedule.kind == "cosine") {
    const double done = static_cast<double>(step) / static_cast<double>(schedule.epochs * schedule.epoch_steps);
    return schedule.start * 0.5 * (1 + std::cos(std::numbers::pi * std::min(done, 1.0)));
  }
  if (schedule.kind == "step") {
    const int every = schedule.step_epochs > 0 ? schedule.step_epochs : std::max(1, (schedule.epochs + 2) / 3);
    return schedule.start * std::pow(schedule.step_factor, static_cast<double>(step / schedule.epoch_steps / every));
  }
  return schedule.start;
}

}  // namespace shoal::train
