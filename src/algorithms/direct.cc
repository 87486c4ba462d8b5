// direct: one hop to each shard's owner, who folds all operands in one pass, and one hop back. As little traffic as the ring in
// two hops; the price is p - 1 peers at once.

#include <algorithm>
#include <numeric>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// Inside a node a shard is gathered while it is still in the cache of the rank that folded it: the message is cut into lanes
// whose shards are about this large, and the gather of one lane follows the scatter of the next.
constexpr std::size_t kLaneShardBytes = 256 << 10;
constexpr std::size_t kMaxLanes = 64;

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::all_gather});
}

std::uint32_t lane_count(const Topology& topology, const Collective& collective) {
  // Over a network one lane is best: the wire is full as it is, and more messages only cost.
  if (topology.nodes() > 1 || topology.ranks() == 1) return 1;
  const std::size_t lane_bytes = kLaneShardBytes * static_cast<std::size_t>(topology.ranks());
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(collective.input_bytes() / lane_bytes, 1, kMaxLanes));
}

Program build_all_reduce(const Topology& topology, const Collective& collective, int rank, const std::vector<int>& members) {
  const auto ranks = static_cast<std::uint32_t>(members.size());
  const std::uint32_t lanes = lane_count(topology, collective);
  ProgramBuilder program(topology, collective, rank, lanes * ranks, lanes);
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    direct_reduce_scatter(program, members, one_chunk_each(ranks, lane, lane * ranks));
    if (lane > 0) direct_all_gather(program, members, one_chunk_each(ranks, lane - 1, (lane - 1) * ranks));
  }
  direct_all_gather(program, members, one_chunk_each(ranks, lanes - 1, (lanes - 1) * ranks));
  if (ranks == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("direct");
}

Program build(const Topology& topology, const Collective& collective, int rank) {
  std::vector<int> members(topology.node_of_rank.size());
  std::iota(members.begin(), members.end(), 0);
  if (collective.kind == CollectiveKind::all_reduce) return build_all_reduce(topology, collective, rank, members);
  ProgramBuilder program(topology, collective, rank, static_cast<std::uint32_t>(members.size()), 1);
  direct_all_gather(program, members, one_chunk_each(members.size(), 0, 0));
  program.copy_to_output({0, static_cast<std::uint32_t>(rank), 1});
  return std::move(program).finish("direct");
}

}  // namespace

Algorithm direct_algorithm() {
  return {"direct", "one hop to each shard's owner and one hop back; least traffic, p - 1 peers at once (Herring, SC20)",
          supports, build};
}

}  // namespace shoal
