// Stages: the moves that algorithms are composed of. Each appends to one rank's Program the part of this rank in a move among
// `members` (distinct ranks); a rank that is not a member gets no steps. All members must call it with equal arguments.
//
// Steps are appended in the order in which they should reach the wire: sends before receives. Every member starts with the
// member after itself, so that no member is the first target of all other members.
#pragma once

#include <span>
#include <vector>

#include "src/algorithms/builder.h"
#include "src/base/rows.h"
#include "src/topology/ranks_by_node.h"

namespace shoal {

/// shares[i] = the shards that members[i] owns.
using Shares = Rows<Shard>;

/// Every owner gets its shards reduced over all members, in one hop: n - 1 messages out, n - 1 in, folded in one pass.
/// Source: Thangakrishnan et al., "Herring", SC20 (balanced fusion buffers); Rabenseifner 2004 calls it the pairwise
/// exchange.
void direct_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// Every member gets every shard from its owner, in one hop.
void direct_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// Every member sends to every other member the shards of its input that belong to that member, and stores what it receives
/// at the same place of its output. One hop. Each rank starts with the next higher rank, so that each receives from one rank
/// at a time.
void direct_all_to_all(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_reduce_scatter, but around a ring: n - 1 hops, each to the next member only.
/// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
void ring_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_all_gather, around the same ring.
void ring_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_reduce_scatter, but in ceil(log2 n) rounds for every n. In each round a member sends the far part of what it
/// still holds to the member `skip` after it; the skips are n halved and rounded up until 1. n - 1 shards out of every
/// member.
/// Source: Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv 2410.14234, 2024.
void circulant_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_all_gather, by the same rounds in reverse.
void circulant_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_reduce_scatter, but pairs at distance 1, 2, 4, ... exchange halves of what they hold: log2 n rounds. If n is not
/// a power of two, an idle member first sends its whole value to its neighbour and at the end receives its shards from it:
/// two rounds more, and all shards out of the idle member. Source: Rabenseifner, "Optimization of collective reduction
/// operations", ICCS 2004.
void halving_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// As direct_all_gather, by the same rounds in reverse: the distance halves, the exchanged size doubles. An idle member first
/// sends its shards to its neighbour and at the end receives all other shards from it.
void doubling_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares);

/// The shares with which the two stages above move one run of chunks per round, as many chunks as players: chunk `first + i`
/// belongs to the player whose number is i with its bits reversed. Idle members own nothing.
Shares halving_shares(std::size_t members, std::uint32_t lane, std::uint32_t first);

/// Each half of the shard, which has an even number of chunks, is folded up a binary tree and sent down it again: even chunks
/// in one tree, odd ones in the other. Inner members of one tree are leaves of the other, so all have equal work: 2
/// floor(log2 n) hops, at most twice the shard in and out of a member.
/// Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", ParCo 2009.
void two_tree_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// Every member sends its value to every other and folds all of them: one hop, n - 1 times the data.
void one_shot_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// Pairs at distance 1, 2, 4, ... exchange and fold their values: log2(n) hops. If n is not a power of two, the excess
/// members first send their value to a neighbour and at the end receive the result from it.
/// Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
void recursive_doubling_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// members[0]'s value goes to all along a binomial tree, the largest subtree first.
void binomial_broadcast(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// members[0] gets the value reduced over all members, along the same tree in reverse. Inner members keep their folded value
/// in scratch: the whole shard.
void binomial_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// For a message dealt in shares of one chunk: members[0] gets the chunk of each member along a binomial tree. An inner member
/// first collects those of its subtree, in scratch. Source: Thakur et al., IJHPCA 2005.
void binomial_gather(ProgramBuilder& program, std::span<const int> members);

/// Each member gets its chunk from members[0], along the same tree in reverse.
void binomial_scatter(ProgramBuilder& program, std::span<const int> members);

/// members[0]'s value goes from each member to the next.
void chain_broadcast(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// members[0] gets the value reduced over all members: chunk by chunk from the last member to the first, and each member
/// folds its own value in. Two chunks of scratch.
void chain_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// In round k every member sends its value to the member 2^k after it and folds the value of the member 2^k before it. Some
/// values are folded more than once, so the operation must be idempotent. Source: Hensgen, Finkel, Manber, "Two algorithms
/// for barrier synchronization", IJPP 1988.
void dissemination_barrier(ProgramBuilder& program, std::span<const int> members, const Shard& shard);

/// The ranks of `node`. On the node of `root`, `root` and the lowest rank have changed places: `root` is the first.
std::vector<int> ranks_of_node_from(const RanksByNode& nodes, std::size_t node, int root);

/// The first rank of every node, as ranks_of_node_from() has it. Starts with `root`; the next nodes follow, cyclically.
std::vector<int> leaders_from(const RanksByNode& nodes, int root);

/// All ranks, node by node from the node of `root`, those of each node as ranks_of_node_from() has them.
std::vector<int> ranks_from(const RanksByNode& nodes, int root);

/// All ranks, node by node from the node of `root`. Ranks ascend inside a node; on the node of `root` they start with `root`
/// and wrap around.
std::vector<int> ranks_in_turn_from(const RanksByNode& nodes, int root);

/// The ranks 0 .. ranks - 1 except `rank`, ascending.
std::vector<int> ranks_but(int ranks, int rank);

/// All ranks, dealt from the nodes in turn: the first of each, the second of each, and so on. If nodes are equal, members at
/// a distance that is a multiple of the number of nodes share a node.
std::vector<int> ranks_dealt(const RanksByNode& nodes);

/// The ranks 0 .. ranks - 1, a power of two of them, each at the position of its bit-reversed number: when players at a
/// distance exchange halves, each half is one run of ranks.
std::vector<int> ranks_with_bits_reversed(int ranks);

/// The share of `rank` in a message dealt in shares of one chunk: the chunk of its number, in lane 0.
[[nodiscard]] inline Shard own_chunk(int rank) { return {0, static_cast<std::uint32_t>(rank), 1}; }

/// own_chunk() of each member.
Shares own_chunks(std::span<const int> members);

/// One shard per member: member i owns chunk first + i, in `lane`.
Shares one_chunk_each(std::size_t members, std::uint32_t lane, std::uint32_t first);

}  // namespace shoal
