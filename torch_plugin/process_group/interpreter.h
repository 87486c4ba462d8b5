// What a waiting thread owes to the interpreter (Python) of the program: the handlers of signals, and an orderly end.
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

/// Why the group ends, for the message to the other ranks.
inline std::string reason_of(const Interruption& interruption) {
  return "an exception in a signal handler of this rank: " + interruption.cause;
}

/// The functions of the interpreter. This library does not know Python: the Python module installs them. Null: there is none.
struct Interpreter {
  /// Runs the handlers of the signals that have arrived, where the calling thread is the one that runs them. What they raised.
  std::optional<Interruption> (*run_signal_handlers)() = nullptr;
  /// Called by a thread that is about to go back into the interpreter. Never returns where the interpreter ends meanwhile, and
  /// would end the process because of that thread.
  void (*stay_out_at_exit)() = nullptr;
};

/// For good: called once, before any call waits.
void install_interpreter(const Interpreter& interpreter) noexcept;
/// The one that is installed.
const Interpreter& interpreter() noexcept;

/// While one exists its thread is in a call of this library.
class InterpreterExit {
 public:
  InterpreterExit() = default;
  InterpreterExit(const InterpreterExit&) = delete;
  InterpreterExit& operator=(const InterpreterExit&) = delete;
  ~InterpreterExit();
};

/// How long a signal waits for its handler while the main thread waits for other ranks.
inline constexpr std::chrono::milliseconds kSignalPeriod{100};

/// Waits until `wait_for(limit)` returns true, at most `timeout` (kNoTimeout: no limit; so is a `limit` of kNoTimeout).
/// Returns whether it did. Where there is an interpreter its signal handlers run meanwhile; what one of them raises is given to
/// `abort(cause)` and thrown.
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

/// The same for `operation`: whether it is over. It is over, too, where it cannot be waited for here; `status` then says why.
bool wait_with_signals(std::chrono::milliseconds timeout, shoal::Work& operation, Status& status,
                       const std::function<void(const std::string& reason)>& abort);
/// Waits for a call of `communicator` that must have ended before the caller can go on; `name` is that of c10d's call.
Status finish_with_signals(const char* name, Communicator& communicator, Result<shoal::Work> operation);

}  // namespace shoal::torch
