// recursive_halving: pairs at distance 1, 2, 4, ... exchange halves of what they hold, then gather along the same pairs in
// reverse. The larger halves travel between neighbours, that is inside a node.
//
// With P the largest power of two <= p: 2 log2 P rounds and 2 n (P - 1) / P bytes out of a rank. If p is not a power of two,
// each of the p - P excess ranks sends its message to a neighbour first and receives the result from that neighbour at the
// end: two rounds more, and n bytes more out of such a neighbour. A reduce_scatter is the first half, for powers of two only:
// log2 p rounds, (p - 1) shares out of a rank, half of the message in scratch.

#include "src/algorithms/position.h"
#include "src/algorithms/registry.h"

namespace shoal {
namespace {

/// The shards of the players whose number equals that of `player` modulo `step`, and of their idle neighbours, in the order
/// of their chunks: the shards that players at distance `step` still hold together.
std::vector<Shard> part_of(const ProgramBuilder& program, const Shares& shares, const Players& players, std::size_t player,
                           std::size_t step) {
  std::vector<Shard> shards;
  const auto add = [&](const std::vector<Shard>& more) { shards.insert(shards.end(), more.begin(), more.end()); };
  for (std::size_t p = player % step; p < players.count(); p += step) {
    const std::size_t member = players.member(p);
    if (players.is_paired(member)) add(shares[member - 1]);
    add(shares[member]);
  }
  std::ranges::sort(shards, {}, &Shard::first);
  std::vector<Shard> run;
  append(run, shards, program.joins_shares());
  return run;
}

/// All shards but those of member `but`, in the order of their chunks.
std::vector<Shard> all_of(const ProgramBuilder& program, Shares shares, std::size_t but) {
  if (but < shares.size()) shares[but].clear();
  return part_of(program, shares, Players(shares.size()), 0, 1);
}

}  // namespace

void halving_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  const Players players(members.size());
  const std::vector<Shard> everything = all_of(program, shares, shares.size());
  if (players.is_idle(me.index())) {
    for (const Shard& shard : everything) program.send(members[me.index() + 1], shard);
    for (const Shard& shard : shares[me.index()]) program.recv(members[me.index() + 1], shard);
    return;
  }
  const bool paired = players.is_paired(me.index());
  if (paired) {
    for (const Shard& shard : everything) program.recv_reduce(members[me.index() - 1], shard);
  }
  const std::size_t player = players.player(me.index());
  for (std::size_t distance = 1; distance < players.count(); distance *= 2) {
    const int peer = members[players.member(player ^ distance)];
    for (const Shard& shard : part_of(program, shares, players, player ^ distance, 2 * distance)) program.send(peer, shard);
    for (const Shard& shard : part_of(program, shares, players, player, 2 * distance)) program.recv_reduce(peer, shard);
    for (const Shard& shard : part_of(program, shares, players, player ^ distance, 2 * distance)) program.forget(shard);
  }
  if (!paired) return;
  for (const Shard& shard : shares[me.index() - 1]) program.send(members[me.index() - 1], shard);
}

void doubling_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  const Players players(members.size());
  if (players.is_idle(me.index())) {
    for (const Shard& shard : shares[me.index()]) program.send(members[me.index() + 1], shard);
    for (const Shard& shard : all_of(program, shares, me.index())) program.recv(members[me.index() + 1], shard);
    return;
  }
  const bool paired = players.is_paired(me.index());
  if (paired) {
    for (const Shard& shard : shares[me.index() - 1]) program.recv(members[me.index() - 1], shard);
  }
  const std::size_t player = players.player(me.index());
  for (std::size_t distance = players.count() / 2; distance > 0; distance /= 2) {
    const int peer = members[players.member(player ^ distance)];
    for (const Shard& shard : part_of(program, shares, players, player, 2 * distance)) program.send(peer, shard);
    for (const Shard& shard : part_of(program, shares, players, player ^ distance, 2 * distance)) program.recv(peer, shard);
  }
  if (!paired) return;
  for (const Shard& shard : all_of(program, shares, me.index() - 1)) program.send(members[me.index() - 1], shard);
}

Shares halving_shares(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  const Players players(members);
  Shares shares(members);
  for (std::size_t i = 0; i < members; ++i) {
    if (players.is_idle(i)) continue;
    std::size_t chunk = 0;
    for (std::size_t bit = 1; bit < players.count(); bit *= 2) chunk = 2 * chunk + ((players.player(i) & bit) != 0 ? 1 : 0);
    shares[i].push_back({lane, first + static_cast<std::uint32_t>(chunk), 1});
  }
  return shares;
}

namespace {

Status supports(const Topology& topology, const Collective& collective) {
  if (collective.kind == CollectiveKind::reduce_scatter) {
    if (Status status = needs_power_of_two(topology, collective.kind); !status.ok()) return status;
  }
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter});
}

/// Pairs whose ranks differ in the highest bit exchange first, so that each half is one run of shares.
Program build_reduce_scatter(const Topology& topology, const Collective& collective, int rank) {
  const std::vector<int> members = ranks_with_bits_reversed(topology.ranks());
  ProgramBuilder program(topology, collective, rank, static_cast<std::uint32_t>(members.size()), 1);
  halving_reduce_scatter(program, members, own_chunks(members));
  program.copy_to_output({0, static_cast<std::uint32_t>(rank), 1});
  return std::move(program).finish("recursive_halving");
}

Program build(const Topology& topology, const Collective& collective, int rank) {
  if (collective.kind == CollectiveKind::reduce_scatter) return build_reduce_scatter(topology, collective, rank);
  const std::vector<int> members = ranks_node_by_node(topology);
  const auto chunks = static_cast<std::uint32_t>(Players(members.size()).count());
  ProgramBuilder program(topology, collective, rank, chunks, 1);
  const Shares shares = halving_shares(members.size(), 0, 0);
  halving_reduce_scatter(program, members, shares);
  doubling_all_gather(program, members, shares);
  if (topology.ranks() == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("recursive_halving");
}

}  // namespace

Algorithm recursive_halving_algorithm() {
  return {"recursive_halving",
          "pairs exchange halves; least traffic in 2 log2(p) rounds for powers of two (Rabenseifner, ICCS 2004)", supports,
          build};
}

}  // namespace shoal
