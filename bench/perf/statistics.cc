#include "bench/perf/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace shoal::perf {

double quantile(std::span<const double> values, double fraction) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

double geometric_mean(std::span<const double> values) {
  if (values.empty()) return 0;
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

double combine(std::span<const double> times, RankTime how) {
  if (times.empty()) return 0;
  switch (how) {
    case RankTime::rank_0:
      return times.front();
    case RankTime::average:
      return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    case RankTime::minimum:
      return *std::min_element(times.begin(), times.end());
    case RankTime::maximum:
      return *std::max_element(times.begin(), times.end());
  }
  return 0;
}

double bus_factor(CollectiveKind kind, int ranks) noexcept {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
      return 1;
    case CollectiveKind::barrier:
    case CollectiveKind::send:
    case CollectiveKind::receive:
      return 0;
  }
  return 0;
}

double least_bytes_per_node(CollectiveKind kind, int ranks, int nodes, double bytes) noexcept {
  if (nodes < 2) return 0;
  // In an all_to_all each rank's input is different, and all of it must be sent.
  const double messages = kind == CollectiveKind::all_to_all ? static_cast<double>(ranks) / nodes : 1;
  return bus_factor(kind, nodes) * bytes * messages;
}

}  // namespace shoal::perf
