// Published all_reduce results of other projects on EC2, to compare predictions with. A plain value.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace shoal {

/// One published measurement of NCCL with aws-ofi-nccl: all_reduce, float32, nccl-tests.
struct PublishedResult {
  std::string_view platform;  ///< instance type
  int nodes;
  int ranks;
  std::uint64_t bytes;
  double bus_gbyte_s;  ///< 0 if only the time is given
  double time_us;      ///< 0 if only the bandwidth is given
  std::string_view source;
  std::string_view note;  ///< how it differs from the other results; mostly empty

  /// Computed from the bandwidth if no time is given.
  [[nodiscard]] double microseconds() const noexcept;
};

/// By platform, then by size.
std::span<const PublishedResult> published_results();

/// The result for the same platform, nodes and bytes, the first one of several; null if there is none.
const PublishedResult* find_published(std::string_view platform, int nodes, std::uint64_t bytes);
/// The results for the same platform at the nearest number of nodes with the sizes next to `bytes`, below and above; a result
/// of exactly that size is returned alone.
std::vector<const PublishedResult*> nearest_published(std::string_view platform, int nodes, std::uint64_t bytes);

}  // namespace shoal
