// The machines and message sizes over which schedules are proven.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "src/schedule/program.h"

namespace shoal::testing {

/// Numbers the nodes of `node_of_rank` in order of their lowest rank, as Topology requires.
inline Topology scattered(const std::vector<int>& node_of_rank) {
  Topology topology;
  std::vector<int> seen;
  for (const int node : node_of_rank) {
    const auto it = std::find(seen.begin(), seen.end(), node);
    topology.node_of_rank.push_back(static_cast<int>(it - seen.begin()));
    if (it == seen.end()) seen.push_back(node);
  }
  return topology;
}

/// Ranks assigned to the nodes in turn, as by `mpirun --map-by node`.
inline Topology round_robin(int ranks, int nodes) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < ranks; ++rank) node_of_rank.push_back(rank % nodes);
  return scattered(node_of_rank);
}

inline Topology shuffled(Topology topology, unsigned seed) {
  std::mt19937 random(seed);
  std::shuffle(topology.node_of_rank.begin(), topology.node_of_rank.end(), random);
  return scattered(topology.node_of_rank);
}

/// all_reduce of float32, sum.
inline Collective all_reduce(std::size_t bytes) {
  return {CollectiveKind::all_reduce, bytes / 4, DataType::float32, ReduceOp::sum, 0};
}

/// SHOAL_SCHEDULE_RANKS=64 adds 24, 32 and 64 ranks, which take far more time than all of these together. tests/long does so.
inline const std::vector<int>& rank_counts() {
  static const std::vector<int> counts = [] {
    std::vector<int> usual{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    if (const char* most = std::getenv("SHOAL_SCHEDULE_RANKS")) usual.insert(usual.end(), {24, 32, std::atoi(most)});
    return usual;
  }();
  return counts;
}

/// One node, one rank a node, every N x L in between, and uneven and scattered ones.
inline std::vector<Topology> topologies(int ranks) {
  std::vector<Topology> all;
  for (int nodes = 1; nodes <= ranks; ++nodes) {
    if (ranks % nodes == 0) all.push_back(Topology::uniform(nodes, ranks / nodes));
  }
  if (ranks >= 3) {
    all.push_back(Topology::ragged({ranks - 1, 1}));
    all.push_back(Topology::ragged({1, ranks - 1}));
    all.push_back(round_robin(ranks, 2));
    all.push_back(round_robin(ranks, 3));
  }
  if (ranks >= 6) {
    all.push_back(Topology::ragged({ranks - 3, 1, 2}));
    all.push_back(Topology::ragged({2, ranks - 5, 3}));
    all.push_back(shuffled(Topology::ragged({ranks / 2, 1, ranks - ranks / 2 - 1}), 7U + static_cast<unsigned>(ranks)));
  }
  if (ranks == 9) all.push_back(Topology::ragged({4, 4, 1}));
  return all;
}

/// Counts that are empty, tiny, less than the ranks, indivisible, and large enough for many lanes and segments.
inline std::vector<std::size_t> counts(int ranks) {
  const auto p = static_cast<std::size_t>(ranks);
  return {0, 1, p > 2 ? p - 1 : 3, 1009, ranks <= 17 ? 5'000'011U : 20'000'003U};
}

/// Sizes of uneven shares, zero for some ranks, or for all but one.
inline std::vector<std::vector<std::size_t>> uneven_counts(int ranks) {
  std::vector<std::vector<std::size_t>> all(3);
  std::mt19937 random(17U + static_cast<unsigned>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    all[0].push_back(rank == ranks / 2 ? 7 : 0);
    all[1].push_back(static_cast<std::size_t>(rank * 5 % 7));
    all[2].push_back(random() % 300'000);
  }
  return all;
}

/// The Collective of shares of `counts`, which must outlive it.
inline Collective with_counts(Collective collective, const std::vector<std::size_t>& counts) {
  collective.counts = counts;
  collective.count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  return collective;
}

/// For every rank its send counts, then its receive counts, of an all_to_all in which rank s sends counts[(s + 3 r) % ranks]
/// elements to rank r.
inline std::vector<std::vector<std::size_t>> exchange_counts(const std::vector<std::size_t>& counts) {
  const std::size_t ranks = counts.size();
  std::vector<std::vector<std::size_t>> all(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t to = 0; to < ranks; ++to) all[rank].push_back(counts[(rank + 3 * to) % ranks]);
    for (std::size_t from = 0; from < ranks; ++from) all[rank].push_back(counts[(from + 3 * rank) % ranks]);
  }
  return all;
}

}  // namespace shoal::testing
