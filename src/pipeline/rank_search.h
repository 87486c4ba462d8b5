// The best partition of a pipeline whose ranks have several stages each: the bytes of a rank are those of all its stages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <shoal/status.h>

#include "src/pipeline/stage_cost.h"

namespace shoal::pipeline {

struct RankRequest {
  int ranks = 1;
  bool by_bytes = false;  ///< the fewest bytes of the largest rank; else the shortest time of the slowest stage
  std::optional<std::int64_t> limit_bytes;  ///< ranks that need more are forbidden
};

struct RankAnswer {
  std::optional<std::vector<int>> cuts;  ///< none: no partition meets the limit
  std::int64_t evaluations = 0;          ///< of the cost of a stage
};

/// As many evaluations take about a second.
inline constexpr std::int64_t kMostRankEvaluations = 10'000'000;

/// The bytes of each rank, whose stages are those with its number modulo `ranks`.
std::vector<std::int64_t> bytes_of_ranks(const std::vector<std::int64_t>& bytes_of_stages, int ranks);

/// Exact, with the ties of partition(). It begins at `start`, the cuts of a good partition, and leaves out what cannot be
/// better. Unlike the cost of a stage, that of a rank is no sum over runs of neighbours, so no table of a few thousand entries
/// has the answer. Error: unsupported for chains for which kMostRankEvaluations are not enough.
Result<RankAnswer> search_ranks(const StageCosts& costs, const RankRequest& request, const std::vector<int>& start);

}  // namespace shoal::pipeline
