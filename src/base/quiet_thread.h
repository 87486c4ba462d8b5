// Threads of the library, which receive none of the program's signals.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

namespace shoal {

/// While this exists, threads that the calling thread starts, itself or inside a library that it calls, take no signals sent to
/// the process: a thread inherits the signal mask of the thread that starts it. Handlers then run in threads of the program. A
/// signal that the program has blocked in all its threads, to wait for it, does not end the process through a thread that the
/// program does not know of. Signals of a thread's own faults and of a profiler's clock stay unblocked.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t signals;
    ::sigfillset(&signals);
    for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) ::sigdelset(&signals, own);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

/// Starts a thread that takes no signals sent to the process.
template <typename Body>
std::thread quiet_thread(Body body) {
  const SignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace shoal
