// Duties of a waiting thread towards the program's interpreter (Python): to run signal handlers, and to allow an orderly end.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <shoal/communicator.h>

namespace shoal::torch {

/// An exception that a signal handler has raised.
struct Interruption {
  std::exception_ptr exception;
  std::string cause;  ///< "KeyboardInterrupt"
};

/// The reason why the group ends, for the message to the other ranks.
inline std::string reason_of(const Interruption& interruption) {
  return "an exception in a signal handler of this rank: " + interruption.cause;
}

/// The functions of the interpreter. This library does not depend on Python: the Python module installs them. Null: no
/// interpreter.
struct Interpreter {
  /// Runs the handlers of pending signals, if the calling thread is the one that runs handlers. Returns the exception that
  /// they raised.
  std::optional<Interruption> (*run_signal_handlers)() = nullptr;
  /// Called by a thread before it returns to the interpreter. Does not return if the interpreter is ending, because the
  /// return of that thread would then end the process.
  void (*stay_out_at_exit)() = nullptr;
};

/// Permanent: called once, before any call waits.
void install_interpreter(const Interpreter& interpreter) noexcept;
/// The installed interpreter.
const Interpreter& interpreter() noexcept;

/// Scope of a call of this library in the current thread.
class InterpreterExit {
 public:
  InterpreterExit() = default;
  InterpreterExit(const InterpreterExit&) = delete;
  InterpreterExit& operator=(const InterpreterExit&) = delete;
  ~InterpreterExit();
};

/// The longest delay of a signal handler while the main thread waits for other ranks.
inline constexpr std::chrono::milliseconds kSignalPeriod{100};

/// Waits until `wait_for(limit)` returns true, at most `timeout` (kNoTimeout: no limit; the same holds for `limit`). Returns
/// whether it did. If there is an interpreter, its signal handlers run in the meantime; an exception that one of them raises
/// is passed to `abort(cause)` and thrown.
template <typename WaitFor, typename Abort>
bool wait_with_signals(std::chrono::milliseconds timeout, WaitFor wait_for, Abort abort) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  if (interpreter().run_signal_handlers == nullptr) return wait_for(timeout);
  const steady_clock::time_point begin = steady_clock::now();
  for (;;) {
    milliseconds limit = kSignalPeriod;
    if (timeout != kNoTimeout) {
      const auto waited = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
      limit = std::max(milliseconds(0), std::min(limit, timeout - waited));
    }
    if (wait_for(limit)) return true;
    if (const std::optional<Interruption> interruption = interpreter().run_signal_handlers()) {
      abort(reason_of(*interruption));
      std::rethrow_exception(interruption->exception);
    }
    if (timeout != kNoTimeout && steady_clock::now() - begin >= timeout) return false;
  }
}

/// The same for `operation`: whether it is over. It also counts as over if this thread cannot wait for it; `status` is then
/// the reason.
bool wait_with_signals(std::chrono::milliseconds timeout, shoal::Work& operation, Status& status,
                       const std::function<void(const std::string& reason)>& abort);
/// Waits for a call of `communicator` that must end before the caller can continue; `name` is the name of c10d's call.
Status finish_with_signals(const char* name, Communicator& communicator, Result<shoal::Work> operation);

}  // namespace shoal::torch
