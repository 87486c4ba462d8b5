// Calls that start together.
#pragma once

#include <shoal/communicator.h>

namespace shoal::torch {

/// While one exists, the calls that its thread makes are collected; they start when the outermost one ends, or when somebody
/// asks for the outcome of one of them. Thread rule: ends in the thread that made it.
class CallScope {
 public:
  CallScope() {
    Communicator::group_begin();
    ++depth_;
  }
  ~CallScope() {
    --depth_;
    (void)Communicator::group_end();  // the outcome of a call without waiting is its work's
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// While one exists, the scopes of its thread are ended: for calls in between whose results are needed at once.
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

  /// Calls of this thread may wait for the end of a scope.
  static bool open() { return depth_ > 0; }

 private:
  static inline thread_local int depth_ = 0;
};

}  // namespace shoal::torch
