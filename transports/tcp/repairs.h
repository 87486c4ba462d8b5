// Counters of repairs by the TCP transports of this process.
#pragma once

#include <cstdint>

namespace shoal::tcp {

/// Since the process started, over all links.
struct Repairs {
  std::uint64_t tiles = 0;        ///< arrived with a wrong checksum and were retransmitted
  std::uint64_t connections = 0;  ///< were lost and replaced
};

// Thread rule: any thread.
void count_repaired_tile() noexcept;
void count_repaired_connection() noexcept;
[[nodiscard]] Repairs repairs() noexcept;

}  // namespace shoal::tcp
