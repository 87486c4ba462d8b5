// Threads of the library's own, which the program's signals never reach.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

namespace shoal {

/// While it lives, threads that the calling thread starts, itself or inside a library that it calls, take no signals sent to
/// the process: a thread inherits the mask of the one that starts it. Handlers then run in threads of the program, and a signal
/// that the program has blocked in all its threads, to wait for it, does not end the process by way of a thread that the
/// program does not know of. A thread's own faults and a profiler's clock are left to it.
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
