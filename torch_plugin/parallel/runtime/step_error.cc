#include "torch_plugin/parallel/runtime/step_error.h"

#include <exception>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::parallel {

StepPlace StepPlace::between_actions(int rank, std::size_t chunks, std::string action, int peer) {
  return {.rank = rank, .stage = chunks == 1 ? rank : -1, .action = std::move(action), .peer = peer};
}

std::string StepPlace::to_string() const {
  std::string text = "rank " + std::to_string(rank);
  if (stage >= 0) text += ", stage " + std::to_string(stage);
  text += ": " + action;
  if (microbatch >= 0) text += " of microbatch " + std::to_string(microbatch);
  if (peer >= 0) text += " (rank " + std::to_string(peer) + ")";
  return text;
}

StepError::StepError(StepPlace place, Status cause)
    : std::runtime_error(place.to_string() + ": " + cause.to_string()), place_(std::move(place)), cause_(std::move(cause)) {}

void throw_unless_ok(const Status& status) {
  if (!status.ok()) throw CallError(status);
}

Status status_of_current_exception() {
  try {
    throw;
  } catch (const CallError& error) {
    return error.status();
  } catch (const std::exception& error) {
    return {StatusCode::aborted, torch::plain_message(error)};
  } catch (...) {
    return {StatusCode::aborted, "an exception that is no std::exception"};
  }
}

}  // namespace shoal::parallel
