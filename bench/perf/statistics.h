// The few statistics of a benchmark, and nccl-tests' definitions of bandwidth.
#pragma once

#include <span>

#include <shoal/types.h>

namespace shoal::perf {

/// The value below which `fraction` (0..1) of `values` lie, interpolated linearly between neighbours; 0 for no values.
[[nodiscard]] double quantile(std::span<const double> values, double fraction);
[[nodiscard]] inline double median(std::span<const double> values) { return quantile(values, 0.5); }

/// The geometric mean of positive values; 0 for no values.
[[nodiscard]] double geometric_mean(std::span<const double> values);

/// How the times of the ranks are combined into one. The numbers are those of nccl-tests' -a.
enum class RankTime { rank_0 = 0, average = 1, minimum = 2, maximum = 3 };
[[nodiscard]] double combine(std::span<const double> times_of_ranks, RankTime how);

/// Bus bandwidth divided by algorithm bandwidth: the share of the message that the busiest wire of an optimal algorithm
/// carries. Source: nccl-tests, doc/PERFORMANCE.md.
[[nodiscard]] double bus_factor(CollectiveKind kind, int ranks) noexcept;

/// Bytes that every node must at least send, and receive, over its network link: 2(N-1)/N of an all_reduce's message, (N-1)/N
/// of all shares together if there are shares (in an all_to_all: for each of its ranks), all of a broadcast's or reduce's; 0
/// on one node. `bytes` is the message's size as in the table.
[[nodiscard]] double least_bytes_per_node(CollectiveKind kind, int ranks, int nodes, double bytes) noexcept;

}  // namespace shoal::perf
