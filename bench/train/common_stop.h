// Stops all ranks at the same step.
#pragma once

#include <atomic>
#include <cstdint>

#include <shoal/communicator.h>

namespace shoal::train {

/// Tells all ranks that one of them was asked to stop, without delaying a step: the all_reduce runs during a step.
/// Collective; thread rule: one thread.
class CommonStop {
 public:
  /// `control` and `stop` must outlive the object.
  CommonStop(Communicator& control, const std::atomic<bool>& stop) : control_(control), stop_(stop) {}
  ~CommonStop() { (void)answer(); }
  CommonStop(const CommonStop&) = delete;
  CommonStop& operator=(const CommonStop&) = delete;

  /// Before a step: starts the all_reduce of the stop flags.
  Status ask();
  /// After the step: whether some rank's stop flag was set in ask(); the same on all ranks. Errors: those of the
  /// communicator.
  Result<bool> answer();

 private:
  Communicator& control_;
  const std::atomic<bool>& stop_;
  Work work_;
  bool asked_ = false;
  std::uint8_t wish_ = 0;
};

}  // namespace shoal::train
