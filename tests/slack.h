// How much longer things may take than without a sanitizer.
#pragma once

namespace shoal {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr double kSlack = 5;
#else
inline constexpr double kSlack = 1;
#endif

}  // namespace shoal
