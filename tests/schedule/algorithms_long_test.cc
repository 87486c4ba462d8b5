// Algorithms, proven over more ranks than fit into tests/run.

#include <gtest/gtest.h>

#include <vector>

#include "src/algorithms/algorithm.h"
#include "tests/schedule/prove.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

TEST(LargeSchedules, AreProvenOn256Ranks) {
  const std::vector<Topology> shapes{Topology::uniform(1, 256), Topology::uniform(256, 1), Topology::uniform(32, 8),
                                     Topology::ragged({100, 1, 64, 31, 60}), testing::round_robin(256, 24)};
  for (const Algorithm& algorithm : algorithms()) {
    for (const Topology& topology : shapes) {
      for (int kind = 0; kind < kCollectiveKindCount; ++kind) {
        const Collective collective = testing::average(static_cast<CollectiveKind>(kind), kind == 0 ? 1009 : 7);
        // The shape hardly affects algorithms that are not compositions.
        const bool first = &topology == &shapes.front() || &topology == &shapes.back();
        if (!first && kind > static_cast<int>(CollectiveKind::barrier) && !algorithm.name.starts_with("hierarchical")) continue;
        if (algorithm.supports(topology, collective).ok() && !repeats_another(algorithm, topology))
          testing::prove(algorithm, topology, collective);
      }
    }
  }
}

TEST(LargeSchedules, CompositionsOfTwoStagesAreProven) { testing::prove_compositions({17, 24}); }

}  // namespace
}  // namespace shoal
