// Reports on standard error the library in which a rank is stuck: the other ranks can report only that it does not reach the
// next barrier.
#pragma once

#include <string>

namespace shoal::perf {

/// While it exists, prints a line with `what` after a minute, and again every minute. One at a time in a process, on one
/// thread: it uses SIGALRM, because the monitored call may never return.
class Stuck {
 public:
  explicit Stuck(const std::string& what, unsigned after_s = 60);
  ~Stuck();
  Stuck(const Stuck&) = delete;
  Stuck& operator=(const Stuck&) = delete;
};

}  // namespace shoal::perf
