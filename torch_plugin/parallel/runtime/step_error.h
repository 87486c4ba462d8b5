// StepError: the exception of a step that failed, with the place where this rank was.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include <shoal/status.h>

namespace shoal::parallel {

/// Where a rank was; -1 for a stage or microbatch that does not apply.
struct StepPlace {
  int rank = 0;
  int stage = -1;
  int microbatch = -1;
  std::string action;  ///< "forward", "receiving the gradient", ...
  int peer = -1;       ///< the rank at the other end of a message

  /// A rank that runs no action of a stage. Its stage is named if it holds only one.
  static StepPlace between_actions(int rank, std::size_t chunks, std::string action, int peer = -1);

  /// "rank 2, stage 2: forward of microbatch 3"
  [[nodiscard]] std::string to_string() const;
};

/// A step failed on all ranks; the communicator is closed. Each rank names its own place and the cause, in which the rank that
/// failed first names its place. Codes: aborted where a unit or the loss failed, here or on another rank; else that of the
/// communicator: peer_failed, timeout, mismatch, ...
class StepError : public std::runtime_error {
 public:
  StepError(StepPlace place, Status cause);

  [[nodiscard]] const StepPlace& place() const { return place_; }
  [[nodiscard]] const Status& cause() const { return cause_; }

 private:
  StepPlace place_;
  Status cause_;
};

/// Carries the Status of a call of the communicator to where the place is known.
class CallError : public std::runtime_error {
 public:
  explicit CallError(Status status) : std::runtime_error(status.to_string()), status_(std::move(status)) {}
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Status status_;
};
/// Throws CallError unless `status` is ok.
void throw_unless_ok(const Status& status);

/// The exception that is being handled, as a Status. Precondition: called in a catch block.
Status status_of_current_exception();

}  // namespace shoal::parallel
