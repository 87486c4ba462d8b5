// chain: the message runs from rank to rank, tile by tile. Every rank sends and receives it once, so a large message takes
// little longer than one hop; the cost is p - 1 hops until the first tile has reached every rank. A reduce runs in the other
// direction.

#include <algorithm>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// A rank keeps two chunks of its folds in scratch, so chunks are small compared with large messages, and there are enough to
// pipeline.
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kMaxChunks = 256;

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::broadcast, CollectiveKind::reduce});
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  // Node by node from the root, so that each node's wire is crossed once.
  const std::vector<int> members = ranks_from(nodes, collective.root);
  if (collective.kind == CollectiveKind::reduce) {
    const auto chunks =
        static_cast<std::uint32_t>(std::clamp<std::size_t>(collective.input_bytes() / kChunkBytes, 1, kMaxChunks));
    ProgramBuilder program(nodes.ranks(), collective, rank, chunks, 1);
    chain_reduce(program, members, {0, 0, chunks});
    if (members.size() == 1) program.copy_to_output({0, 0, chunks});
    return std::move(program).finish("chain");
  }
  ProgramBuilder program(nodes.ranks(), collective, rank, 1, 1);
  chain_broadcast(program, members, {0, 0, 1});
  return std::move(program).finish("chain");
}

}  // namespace

Algorithm chain_algorithm() { return {"chain", "from rank to rank, tile by tile; for large messages", supports, build}; }

}  // namespace shoal
