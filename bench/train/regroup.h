// Regroups the ranks that survive a loss.
#pragma once

#include <functional>
#include <vector>

#include <shoal/status.h>

#include "bench/train/job.h"
#include "bench/train/replica.h"
#include "bench/train/step_log.h"
#include "bench/train/survival.h"

namespace shoal::train {

/// After `failure`: shrinks the job to the survivors and calls `go_back`, which must bring them to the same step; repeats
/// both while further ranks are lost. `lost` gets the places of the lost ranks. Collective over the survivors. Errors:
/// `failure` if no rank is lost, timeout if a live rank does not call this, those of `go_back`.
Status regroup(Job& job, Replica& replica, Status failure, std::vector<int>& lost, const std::function<Status()>& go_back);

/// The state from which the survivors continue.
struct Restart {
  TrainingState at = {};
  std::vector<double> losses = {};  ///< of the steps from the start of that turn to that step, means over the survivors
};

/// Agrees on the last turn that all ranks have begun and the last step that all have completed, and brings `replica` there.
/// Collective. Errors: those of the communicator; that of code_of() if the replica cannot continue.
Result<Restart> go_back_together(const Job& job, Replica& replica, const StepLog& books);

}  // namespace shoal::train
