// Says on standard error in which library a rank is stuck: the others can only say that it does not come to the next barrier.
#pragma once

#include <string>

namespace shoal::perf {

/// While it lives: after a minute, and every minute from then on, a line with `what`. One at a time in a process, on one
/// thread: it uses SIGALRM, since what it watches may never return.
class Stuck {
 public:
  explicit Stuck(const std::string& what, unsigned after_s = 60);
  ~Stuck();
  Stuck(const Stuck&) = delete;
  Stuck& operator=(const Stuck&) = delete;
};

}  // namespace shoal::perf
