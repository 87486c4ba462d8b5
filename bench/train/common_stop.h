// Ranks that end at the same step.
#pragma once

#include <atomic>
#include <cstdint>

#include <shoal/communicator.h>

namespace shoal::train {

/// Tells all ranks that one of them was asked to stop, at no step's cost: the question travels while a step is being made.
/// Collective; thread rule: one thread.
class CommonStop {
 public:
  /// `control` and `stop` must outlive the object.
  CommonStop(Communicator& control, const std::atomic<bool>& stop) : control_(control), stop_(stop) {}
  ~CommonStop() { (void)answer(); }
  CommonStop(const CommonStop&) = delete;
  CommonStop& operator=(const CommonStop&) = delete;

  /// Before a step: asks for the next time.
  Status ask();
  /// After the step: whether some rank wanted to stop when it asked; the same on all ranks. Errors: the communicator's.
  Result<bool> answer();

 private:
  Communicator& control_;
  const std::atomic<bool>& stop_;
  Work work_;
  bool asked_ = false;
  std::uint8_t wish_ = 0;
};

}  // namespace shoal::train
