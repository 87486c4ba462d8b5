// Time limits in tests.
#pragma once

#include <chrono>

namespace shoal {

#ifdef SHOAL_SANITIZED
inline constexpr double kSlack = 5;  ///< factor on time limits
#else
inline constexpr double kSlack = 1;
#endif

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace shoal
