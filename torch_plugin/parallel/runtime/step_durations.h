// StepDurations: how long a rank computed in a step.
#pragma once

namespace shoal::parallel {

/// Of one rank, in seconds. What is not busy is the idle time of the schedule and of the messages.
struct StepDurations {
  double busy_s = 0;  ///< in forwards, losses and backwards
  double step_s = 0;  ///< from the header of the step until this rank had done its last action and its reductions
};

}  // namespace shoal::parallel
