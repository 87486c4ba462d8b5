// Calls that start together.
#pragma once

#include <shoal/communicator.h>

namespace shoal::torch {

/// While one exists, the calls of its thread are collected. They start when the outermost scope ends, or when a thread asks
/// for the outcome of one of them. Thread rule: ends in the thread that made it.
class CallScope {
 public:
  CallScope() {
    Communicator::group_begin();
    ++depth_;
  }
  ~CallScope() {
    --depth_;
    (void)Communicator::group_end();  // the outcome of a call that nothing waits for is in its work
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// While one exists, the scopes of its thread are suspended: for calls in between whose results are needed at once.
  class Outside {
   public:
    Outside() {
      for (int i = 0; i < depth_; ++i) (void)Communicator::group_end();
    }
    ~Outside() {
      for (int i = 0; i < depth_; ++i) Communicator::group_begin();
    }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
  };

  /// Whether calls of this thread may have to wait for the end of a scope.
  static bool open() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace shoal::torch
