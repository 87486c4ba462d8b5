#include "torch_plugin/process_group/interpreter.h"

#include "torch_plugin/process_group/callback_threads.h"

namespace shoal::torch {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {
Interpreter installed;
}  // namespace

void install_interpreter(const Interpreter& interpreter) noexcept { installed = interpreter; }
const Interpreter& interpreter() noexcept { return installed; }

InterpreterExit::~InterpreterExit() {
  // The interpreter waits for callbacks when it ends, and callbacks may wait for calls.
  if (interpreter().stay_out_at_exit != nullptr && CallbackThreads::own_level() == 0) interpreter().stay_out_at_exit();
}

bool wait_with_signals(milliseconds timeout, shoal::Work& operation, Status& status,
                       const std::function<void(const std::string& reason)>& abort) {
  const auto wait_for = [&](milliseconds limit) {
    const steady_clock::time_point begin = steady_clock::now();
    status = limit == kNoTimeout ? operation.wait() : operation.wait_for(limit);
    if (operation.is_completed() || status.code() != StatusCode::timeout) return true;
    if (steady_clock::now() - begin >= limit) return false;
    status = operation.wait();  // only another process can complete it: this is a child of fork()
    return true;
  };
  return wait_with_signals(timeout, wait_for, abort);
}

Status finish_with_signals(const char* name, Communicator& communicator, Result<shoal::Work> operation) {
  const InterpreterExit leaving;
  if (!operation.ok()) return operation.status();
  Status status;
  wait_with_signals(kNoTimeout, *operation, status, [&](const std::string& reason) {
    communicator.abort(std::string(name) + ": " + reason);
    (void)operation->wait();  // the caller frees its memory when the exception unwinds its stack
  });
  return status;
}

}  // namespace shoal::torch
