// CallGroup: the calls that a thread makes between group_begin() and group_end(), posted together.
#pragma once

#include <vector>

#include <shoal/status.h>

#include "src/plan/operation.h"

namespace shoal {

/// Thread rule: each thread has its own.
class CallGroup {
 public:
  static void begin() noexcept { ++depth_; }
  /// At the outermost end(): posts the collected calls, waits for the blocking ones, returns their first error. Errors:
  /// invalid_argument without a begin().
  static Status end();
  /// Calls of this thread are being collected.
  static bool open() noexcept { return depth_ != 0; }
  /// Collects `operation`, holding a reference. `blocking`: end() waits for it.
  static void add(internal::Operation* operation, bool blocking);
  /// Posts the calls collected so far, because the caller is about to wait for one of them.
  static void flush();

 private:
  struct Entry {
    internal::Operation* operation = nullptr;
    bool blocking = false;
  };
  struct Collected {
    std::vector<Entry> entries;
    std::vector<internal::Operation*> unposted;
  };
  static Collected& collected();

  static thread_local int depth_;
};

}  // namespace shoal
