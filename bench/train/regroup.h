// How ranks that are left after a loss come together again.
#pragma once

#include <functional>
#include <vector>

#include <shoal/status.h>

#include "bench/train/job.h"
#include "bench/train/replica.h"
#include "bench/train/step_log.h"
#include "bench/train/survival.h"

namespace shoal::train {

/// After `failure`: shrinks the job to those who are left and calls `go_back`, which is to bring them to the same step; all of
/// it again while ranks are lost meanwhile. `lost` gets the places of the lost. Collective over those who are left. Errors:
/// `failure` where nobody is lost, timeout where a rank lives and does not come, what `go_back` says.
Status regroup(Job& job, Replica& replica, Status failure, std::vector<int>& lost, const std::function<Status()>& go_back);

/// Where the ranks that are left go on from.
struct Restart {
  TrainingState at = {};
  std::vector<double> losses = {};  ///< of the steps from the start of that turn to that step, means over these ranks
};

/// Agrees on the last turn that all have begun and the last step that all have complete, and brings `replica` there.
/// Collective. Errors: the communicator's; that of code_of() where the replica cannot go on.
Result<Restart> go_back_together(const Job& job, Replica& replica, const StepLog& books);

}  // namespace shoal::train
