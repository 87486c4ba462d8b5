// Proofs of single schedules, for tests of all of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/algorithms/algorithm.h"
#include "src/schedule/verifier.h"
#include "tests/schedule/shapes.h"

namespace shoal::testing {

/// An average: every contribution must be included once and divided once.
inline Collective average(CollectiveKind kind, std::size_t count) {
  return {kind, count, DataType::float32, ReduceOp::avg, 0, {}};
}

/// Proves the schedule of `algorithm`. False if it does not support `collective` on `topology`.
inline bool prove(const Algorithm& algorithm, const Topology& topology, const Collective& collective,
                  const std::vector<std::vector<std::size_t>>& counts_of_rank = {}) {
  const auto schedule = build_schedule(algorithm, topology, collective, counts_of_rank);
  if (!schedule.ok()) {
    EXPECT_EQ(schedule.status().code(), StatusCode::unsupported) << schedule.status().to_string();
    return false;
  }
  const auto faults = verify(*schedule);
  EXPECT_TRUE(faults.empty()) << algorithm.name << " " << to_string(collective) << " on " << topology.shape() << ": "
                              << to_status(faults).to_string();
  return true;
}

/// hierarchical() of any two algorithms within and between nodes.
inline void prove_compositions(const std::vector<int>& rank_counts) {
  for (const std::string inside : {"direct", "ring", "circulant", "recursive_halving"}) {
    for (const std::string outside :
         {"direct", "ring", "circulant", "recursive_halving", "recursive_doubling", "one_shot", "tree"}) {
      const auto algorithm = find_algorithm("hierarchical(" + inside + "," + outside + ")");
      ASSERT_TRUE(algorithm.ok()) << algorithm.status().to_string();
      for (const int ranks : rank_counts) {
        for (const Topology& topology : topologies(ranks)) {
          for (const std::size_t count : counts(ranks)) {
            ASSERT_TRUE(prove(**algorithm, topology, average(CollectiveKind::all_reduce, count)));
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
          for (const CollectiveKind kind : {CollectiveKind::reduce_scatter, CollectiveKind::all_gather}) {
            prove(**algorithm, topology, average(kind, 7));
            for (const auto& counts : uneven_counts(ranks)) {
              prove(**algorithm, topology, with_counts(average(kind, 0), counts));
            }
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
        }
      }
    }
  }
}

}  // namespace shoal::testing
