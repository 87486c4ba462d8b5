// What others have published about all_reduce on EC2, to hold predictions against. A plain value.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace shoal {

/// One measurement by others, of NCCL with aws-ofi-nccl: all_reduce, float32, nccl-tests.
struct PublishedResult {
  std::string_view platform;  ///< instance type
  int nodes;
  int ranks;
  std::uint64_t bytes;
  double bus_gbyte_s;  ///< 0 where only the time is given
  double time_us;      ///< 0 where only the bandwidth is given
  std::string_view source;

  /// From the bandwidth where no time is given.
  [[nodiscard]] double microseconds() const noexcept;
};

/// By platform, then by size.
std::span<const PublishedResult> published_results();

/// That of the same platform, nodes and bytes; null where there is none.
const PublishedResult* find_published(std::string_view platform, int nodes, std::uint64_t bytes);

}  // namespace shoal
