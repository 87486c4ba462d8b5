// direct: one hop to the owner of each shard, which folds all operands in one pass, and one hop back. As little traffic as
// the ring in two hops; the cost is p - 1 peers at once. A message that is dealt in shares needs only one hop.
//
// Broadcast: the root deals the message to the other ranks, and each of these sends its part to all but the root. So no rank,
// the root included, sends or receives the message more than once. Reduce: the same in reverse. A rank keeps its part, n / (p
// - 1), in scratch.

#include <algorithm>
#include <numeric>

#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// Inside a node a shard is gathered while it is still in the cache of the rank that folded it. The message is cut into lanes
// with shards of about this size, and the gather of one lane follows the scatter of the next.
constexpr std::size_t kLaneShardBytes = 256 << 10;
constexpr std::size_t kMaxLanes = 64;

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                                       CollectiveKind::reduce_scatter, CollectiveKind::reduce, CollectiveKind::gather,
                                       CollectiveKind::scatter, CollectiveKind::all_to_all});
}

std::uint32_t lane_count(const RanksByNode& nodes, const Collective& collective) {
  // Over a network one lane is best: it already fills the wire, and further messages only add cost.
  if (nodes.nodes() > 1 || nodes.ranks() == 1) return 1;
  const std::size_t lane_bytes = kLaneShardBytes * static_cast<std::size_t>(nodes.ranks());
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(collective.input_bytes() / lane_bytes, 1, kMaxLanes));
}

Program build_all_reduce(const RanksByNode& nodes, const Collective& collective, int rank, const std::vector<int>& members) {
  const auto ranks = static_cast<std::uint32_t>(members.size());
  const std::uint32_t lanes = lane_count(nodes, collective);
  ProgramBuilder program(nodes.ranks(), collective, rank, lanes * ranks, lanes);
  program.fold_across_links();
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    direct_reduce_scatter(program, members, one_chunk_each(ranks, lane, lane * ranks));
    if (lane > 0) direct_all_gather(program, members, one_chunk_each(ranks, lane - 1, (lane - 1) * ranks));
  }
  direct_all_gather(program, members, one_chunk_each(ranks, lanes - 1, (lanes - 1) * ranks));
  if (ranks == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("direct");
}

/// Broadcast and reduce: every rank except the root owns a part.
Program build_rooted(const RanksByNode& nodes, const Collective& collective, int rank) {
  const std::vector<int> others = ranks_but(nodes.ranks(), collective.root);
  const auto parts = static_cast<std::uint32_t>(std::max<std::size_t>(others.size(), 1));
  const Shares shares = one_chunk_each(others.size(), 0, 0);
  ProgramBuilder program(nodes.ranks(), collective, rank, parts, 1);
  const bool reduce = collective.kind == CollectiveKind::reduce;
  if (reduce) {
    program.fold_across_links();
    direct_reduce_scatter(program, others, shares);
  }
  for (std::uint32_t i = 0; i < others.size(); ++i) {
    const Shard part = shares[i].front();
    if (rank == collective.root) reduce ? program.recv_reduce(others[i], part) : program.send(others[i], part);
    if (rank == others[i]) reduce ? program.send(collective.root, part) : program.recv(collective.root, part);
  }
  if (!reduce) direct_all_gather(program, others, shares);
  if (reduce && others.empty()) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("direct");
}

/// A message that is dealt in shares: every share goes from the rank that has it to the rank that owns it.
Program build_shares(const RanksByNode& nodes, const Collective& collective, int rank, const std::vector<int>& members) {
  const auto ranks = static_cast<std::uint32_t>(members.size());
  const Shares shares = one_chunk_each(ranks, 0, 0);
  const Shard own = own_chunk(rank);
  const bool is_root = rank == collective.root;
  ProgramBuilder program(nodes.ranks(), collective, rank, ranks, 1);
  switch (collective.kind) {
    case CollectiveKind::all_gather:
      direct_all_gather(program, members, shares);
      break;
    case CollectiveKind::reduce_scatter:
      program.fold_across_links();
      direct_reduce_scatter(program, members, shares);
      break;
    case CollectiveKind::gather:
      if (!is_root) program.send(collective.root, own);
      break;
    case CollectiveKind::scatter:
      if (!is_root) program.recv(collective.root, own);
      break;
    default:
      direct_all_to_all(program, members, shares);
      break;
  }
  for (const int other : ranks_but(nodes.ranks(), rank)) {
    if (!is_root || !has_root(collective.kind)) break;
    const Shard theirs{0, static_cast<std::uint32_t>(other), 1};
    collective.kind == CollectiveKind::gather ? program.recv(other, theirs) : program.send(other, theirs);
  }
  if (is_root || collective.kind != CollectiveKind::gather) program.copy_to_output(own);
  return std::move(program).finish("direct");
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  if (collective.kind == CollectiveKind::broadcast || collective.kind == CollectiveKind::reduce) {
    return build_rooted(nodes, collective, rank);
  }
  std::vector<int> members(nodes.in_order().size());
  std::iota(members.begin(), members.end(), 0);
  if (collective.kind == CollectiveKind::all_reduce) return build_all_reduce(nodes, collective, rank, members);
  return build_shares(nodes, collective, rank, members);
}

}  // namespace

Algorithm direct_algorithm() {
  return {"direct", "one hop to each shard's owner and one hop back; least traffic, p - 1 peers at once (Herring, SC20)",
          supports, build};
}

}  // namespace shoal
