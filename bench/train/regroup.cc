#include "bench/train/regroup.h"

#include <exception>

#include "bench/train/figures.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {

Status regroup(Job& job, Replica& replica, Status failure, std::vector<int>& lost, const std::function<Status()>& go_back) {
  while (may_be_a_loss(failure)) {
    // Other ranks may not need the lost rank in their current call, but they do need this rank.
    replica.give_up();
    job.control->abort("a rank was lost");
    const Result<std::vector<int>> missing = shrink(job);
    if (!missing.ok()) {
      failure = missing.status();
      if (failure.code() == StatusCode::timeout) return failure;
      continue;
    }
    if (missing->empty()) return failure;
    lost.insert(lost.end(), missing->begin(), missing->end());
    failure = go_back();
  }
  return failure;
}

Result<Restart> go_back_together(const Job& job, Replica& replica, const StepLog& books) {
  const Result<TrainingState> agreed = agree(*job.control, {.turn = books.turn(), .step = replica.complete_step()});
  if (!agreed.ok()) return agreed.status();
  Restart restart{.at = *agreed, .losses = books.losses(books.start_of(agreed->turn).step, agreed->step)};
  if (!restart.losses.empty()) {
    if (const Status status = average(*job.control, restart.losses); !status.ok()) return status;
  }
  try {
    replica.go_on_from(agreed->step);
  } catch (const std::exception& error) {
    return Status(code_of(error), "continuing without lost ranks: " + torch::plain_message(error));
  }
  if (const Status ready = job.control->barrier(); !ready.ok()) return ready;
  return restart;
}

}  // namespace shoal::train
