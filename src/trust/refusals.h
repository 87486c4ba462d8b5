// How many connections this process has turned away.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

/// Refused connections since the process started, over all its listeners, and why the last one was refused.
struct Refusals {
  std::uint64_t count = 0;
  std::string last;  ///< "store: it does not hold the job's key"; empty where there was none
};

/// Counts a connection that `listener` ("store", "tcp", "shm") has turned away. Thread rule: any thread. Memory does not grow.
void count_refusal(std::string_view listener, std::string_view why);

/// What has been counted so far. Thread rule: any thread.
Refusals refusals();

}  // namespace shoal
