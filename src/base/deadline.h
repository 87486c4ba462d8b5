// From a timeout to a deadline.
#pragma once

#include <chrono>

namespace shoal {

/// `timeout` from now. A timeout that means "never" (milliseconds::max()) ends in ten years: with more the clock would
/// overflow, and the deadline would lie in the past.
template <typename Rep, typename Period>
std::chrono::steady_clock::time_point deadline_after(std::chrono::duration<Rep, Period> timeout) {
  constexpr std::chrono::hours kLongest{24 * 3652};
  return std::chrono::steady_clock::now() +
         (timeout < kLongest ? std::chrono::ceil<std::chrono::nanoseconds>(timeout) : std::chrono::nanoseconds(kLongest));
}

}  // namespace shoal
