// Waiting for a condition.
#pragma once

#include <chrono>
#include <thread>

namespace shoal::hostile {

inline constexpr auto kTimeLimit = std::chrono::seconds(60);  ///< far longer than any timeout of a listener

/// Waits until `condition` is true; false after kTimeLimit.
template <typename Condition>
bool wait_until(Condition condition) {
  for (const auto deadline = std::chrono::steady_clock::now() + kTimeLimit; !condition();) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace shoal::hostile
