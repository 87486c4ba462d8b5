// What others have published about all_reduce on EC2, to hold predictions against. A plain value.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

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
  std::string_view note;  ///< what sets it apart; mostly empty

  /// From the bandwidth where no time is given.
  [[nodiscard]] double microseconds() const noexcept;
};

/// By platform, then by size.
std::span<const PublishedResult> published_results();

/// That of the same platform, nodes and bytes, the first one of several; null where there is none.
const PublishedResult* find_published(std::string_view platform, int nodes, std::uint64_t bytes);
/// Of the same platform those of the nearest number of nodes whose sizes are next to `bytes`, below and above; one of that very
/// size stands alone.
std::vector<const PublishedResult*> nearest_published(std::string_view platform, int nodes, std::uint64_t bytes);

}  // namespace shoal
