// StepDurations: how long a rank computed in a step, and when.
#pragma once

#include <vector>

namespace shoal::parallel {

/// A forward or backward of one microbatch. Times are in seconds since the step began on its rank.
struct ComputedAction {
  bool is_backward = false;
  int stage = 0;
  int microbatch = 0;
  double begin_s = 0;
  double end_s = 0;
};

/// Of one rank, in seconds.
struct StepDurations {
  double busy_s = 0;  ///< in forwards, losses and backwards
  double step_s = 0;  ///< from the header of the step until this rank had done its last action and its reductions
  std::vector<ComputedAction> actions = {};  ///< in their order

  /// Between the first and the last action, where the next one waited for a message. The rest of the step is the time in which
  /// the schedule has nothing for this rank: the pipeline fills or drains.
  [[nodiscard]] double waiting_s() const {
    return actions.empty() ? 0 : actions.back().end_s - actions.front().begin_s - busy_s;
  }
};

}  // namespace shoal::parallel
