// The plugin's own threads take no signals of the program.
#pragma once

#include <pthread.h>

#include <csignal>
#include <initializer_list>
#include <thread>
#include <utility>

namespace shoal::torch {

/// Starts a thread that takes no signals sent to the process: their handlers run in threads of the program, and a signal that
/// the program has blocked in its threads stays pending until the program asks for it. Signals that a thread raises itself, and
/// a profiler's clock, are left open. Threads that the new one starts inherit the mask.
template <typename Body>
std::thread quiet_thread(Body body) {
  sigset_t blocked;
  ::sigfillset(&blocked);
  for (const int open : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF}) ::sigdelset(&blocked, open);
  struct CallersMask {
    sigset_t mask;
    ~CallersMask() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }  // also where no thread can be made
  } before;
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before.mask);  // the new thread inherits it, so that it is never open
  return std::thread(std::move(body));
}

}  // namespace shoal::torch
