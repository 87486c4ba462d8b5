// The calls of this process of which not all callbacks have run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace shoal::torch {

/// For the end of a program with an interpreter: callbacks written in its language must have run before the interpreter ends.
/// Thread rule: any thread.
class CallsInFlight {
 public:
  /// Ends the call early by closing its group for this reason. May be empty.
  using Abort = std::function<void(const std::string& reason)>;
  class Entry;

  /// Counts a call until the last copy of the returned pointer is destroyed, which is when its callbacks have returned.
  static std::shared_ptr<Entry> add(Abort abort);
  /// Aborts all calls in flight and waits until their entries are destroyed, at most `limit`. Returns whether they are.
  static bool end_all(const std::string& reason, std::chrono::milliseconds limit);
};

}  // namespace shoal::torch
