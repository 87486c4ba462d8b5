// The calls of this process whose ends have not been told to all callbacks.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace shoal::torch {

/// For the end of a program with an interpreter: callbacks written in its language must have run before it ends.
/// Thread rule: any thread.
class CallsInFlight {
 public:
  /// Ends the call early by closing its group with this reason. May be empty.
  using Abort = std::function<void(const std::string& reason)>;
  class Entry;

  /// Counts a call until the last copy of what is returned has gone: when its callbacks have returned.
  static std::shared_ptr<Entry> add(Abort abort);
  /// Aborts all calls that are in flight and waits until they have gone, at most `limit`; whether they have.
  static bool end_all(const std::string& reason, std::chrono::milliseconds limit);
};

}  // namespace shoal::torch
