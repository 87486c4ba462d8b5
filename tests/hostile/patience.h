// Waiting for what must come soon.
#pragma once

#include <chrono>
#include <thread>

namespace shoal::hostile {

inline constexpr auto kTimeLimit = std::chrono::seconds(60);  ///< far longer than any time-out of a listener

/// False where it has not come true by then.
template <typename Condition>
bool wait_until(Condition there) {
  for (const auto until = std::chrono::steady_clock::now() + kTimeLimit; !there();) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace shoal::hostile
