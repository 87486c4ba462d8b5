// Waits of tests for what other threads or processes do.
#pragma once

#include <chrono>
#include <thread>

namespace shoal::testing {

/// Waits until `condition` holds; false if it does not after a minute.
template <typename Condition>
[[nodiscard]] bool eventually(const Condition& condition) {
  const auto start = std::chrono::steady_clock::now();
  while (!condition()) {
    if (std::chrono::steady_clock::now() - start > std::chrono::minutes(1)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace shoal::testing
