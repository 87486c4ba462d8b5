// The plugin's own threads block the signals of the program.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

namespace shoal::torch {

/// Starts a thread that receives no signals sent to the process: their handlers run in threads of the program, and a signal
/// that the program has blocked in its threads stays pending until the program accepts it. Signals that a thread raises
/// itself, and a profiler's clock, are not blocked. Threads that the new one starts inherit the mask.
template <typename Body>
std::thread quiet_thread(Body body) {
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (const int open : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) ::sigdelset(&blocked, open);
  struct CallersMask {
    sigset_t mask;
    ~CallersMask() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }  // also if the thread cannot be created
  } before;
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before.mask);  // inherited by the new thread, so they are blocked from its start
  return std::thread(std::move(body));
}

}  // namespace shoal::torch
