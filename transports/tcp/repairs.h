// How often the TCP transports of this process have put something right.
#pragma once

#include <cstdint>

namespace shoal::tcp {

/// Since the process started, over all links.
struct Repairs {
  std::uint64_t tiles = 0;        ///< came with a wrong check sum and were sent again
  std::uint64_t connections = 0;  ///< were lost and made anew
};

// Thread rule: any thread.
void count_repaired_tile() noexcept;
void count_repaired_connection() noexcept;
[[nodiscard]] Repairs repairs() noexcept;

}  // namespace shoal::tcp
