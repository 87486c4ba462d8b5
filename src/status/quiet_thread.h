// Threads of the library's own, which the program's signals never reach.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

namespace shoal {

/// Starts a thread that takes no signals sent to the process: their handlers run in threads of the program, and one that the
/// program has blocked everywhere, to wait for it, does not end the process by way of a thread that it does not know of. A
/// thread's own faults and a profiler's clock are left to it.
template <typename Body>
std::thread quiet_thread(Body body) {
  sigset_t signals;
  ::sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) ::sigdelset(&signals, own);
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);  // a thread inherits it: there is no moment without
  struct Restore {
    const sigset_t& mask;
    ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } const restore{before};  // also where there is no thread to be had
  return std::thread(std::move(body));
}

}  // namespace shoal
