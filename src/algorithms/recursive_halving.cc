// recursive_halving: pairs at distance 1, 2, 4, ... exchange halves of what they hold, then gather along the same pairs in
// reverse. The larger halves travel between neighbours, that is inside a node.
//
// With P the largest power of two <= p: 2 log2 P rounds and 2 n (P - 1) / P bytes out of a rank. If p is not a power of two,
// each of the p - P excess ranks sends its message to a neighbour first and receives the result from that neighbour at the
// end: two rounds more, and n bytes more out of such a neighbour. A reduce_scatter is the first half, for powers of two only:
// log2 p rounds, (p - 1) shares out of a rank, half of the message in scratch.

#include <algorithm>
#include <utility>

#include "src/algorithms/position.h"
#include "src/algorithms/registry.h"

namespace shoal {
namespace {

/// A shard and the player that acts for its owner.
struct Held {
  std::uint32_t player = 0;
  Shard shard;
};

/// Sorts by chunk. Shards of one chunk each that fill a run, the usual ones, go straight to their places.
void sort_by_chunk(std::vector<Held>& held) {
  if (held.empty()) return;
  const auto chunk_of = [](const Held& h) { return h.shard.first; };
  const std::uint32_t lowest = std::ranges::min(held, {}, chunk_of).shard.first;
  const bool fill_a_run =
      std::ranges::all_of(held, [&](const Held& h) { return h.shard.count == 1 && h.shard.first - lowest < held.size(); });
  if (!fill_a_run) {
    std::ranges::sort(held, {}, chunk_of);
    return;
  }
  std::vector<Held> sorted(held.size());
  for (const Held& h : held) sorted[h.shard.first - lowest] = h;
  held = std::move(sorted);
}

/// The shards of all members except `but`, in the order of their chunks.
std::vector<Held> all_held(const Shares& shares, const Players& players, std::size_t but) {
  std::vector<Held> held;
  held.reserve(shares.values().size());
  for (std::size_t member = 0; member < shares.size(); ++member) {
    if (member == but) continue;
    const auto player = static_cast<std::uint32_t>(players.player(member));
    for (const Shard& shard : shares[member]) held.push_back({player, shard});
  }
  sort_by_chunk(held);
  return held;
}

/// As they travel together.
std::vector<Shard> run_of(const ProgramBuilder& program, std::span<const Held> held) {
  std::vector<Shard> run;
  for (const Held& h : held) append(run, h.shard, program.joins_shares());
  return run;
}

/// The exchange of a player at one distance: after a halving it keeps `mine`, and its partner keeps `theirs`.
struct Exchange {
  std::size_t partner = 0;
  std::vector<Shard> mine;
  std::vector<Shard> theirs;
};

/// The exchanges of `player` at distance 1, 2, 4, ...: players at a distance hold the same shards before it.
std::vector<Exchange> exchanges_of(const ProgramBuilder& program, const Shares& shares, const Players& players,
                                   std::size_t player) {
  std::vector<Held> held = all_held(shares, players, shares.size());
  std::vector<Exchange> exchanges;
  for (std::size_t distance = 1; distance < players.count(); distance *= 2) {
    Exchange exchange{player ^ distance, {}, {}};
    std::size_t kept = 0;
    for (const Held& h : held) {
      const bool stays = ((h.player ^ player) & distance) == 0;
      append(stays ? exchange.mine : exchange.theirs, h.shard, program.joins_shares());
      if (stays) held[kept++] = h;
    }
    held.resize(kept);
    exchanges.push_back(std::move(exchange));
  }
  return exchanges;
}

}  // namespace

void halving_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  const Players players(members.size());
  const bool paired = players.is_paired(me.index());
  const std::vector<Shard> everything =
      paired ? run_of(program, all_held(shares, players, shares.size())) : std::vector<Shard>();
  if (players.is_idle(me.index())) {
    for (const Shard& shard : everything) program.send(members[me.index() + 1], shard);
    for (const Shard& shard : shares[me.index()]) program.recv(members[me.index() + 1], shard);
    return;
  }
  for (const Shard& shard : everything) program.recv_reduce(members[me.index() - 1], shard);
  for (const Exchange& exchange : exchanges_of(program, shares, players, players.player(me.index()))) {
    const int peer = members[players.member(exchange.partner)];
    for (const Shard& shard : exchange.theirs) program.send(peer, shard);
    for (const Shard& shard : exchange.mine) program.recv_reduce(peer, shard);
    for (const Shard& shard : exchange.theirs) program.forget(shard);
  }
  if (!paired) return;
  for (const Shard& shard : shares[me.index() - 1]) program.send(members[me.index() - 1], shard);
}

void doubling_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  const Players players(members.size());
  const auto all_but = [&](std::size_t member) { return run_of(program, all_held(shares, players, member)); };
  if (players.is_idle(me.index())) {
    for (const Shard& shard : shares[me.index()]) program.send(members[me.index() + 1], shard);
    for (const Shard& shard : all_but(me.index())) program.recv(members[me.index() + 1], shard);
    return;
  }
  const bool paired = players.is_paired(me.index());
  if (paired) {
    for (const Shard& shard : shares[me.index() - 1]) program.recv(members[me.index() - 1], shard);
  }
  auto exchanges = exchanges_of(program, shares, players, players.player(me.index()));
  std::ranges::reverse(exchanges);
  for (const Exchange& exchange : exchanges) {
    const int peer = members[players.member(exchange.partner)];
    for (const Shard& shard : exchange.mine) program.send(peer, shard);
    for (const Shard& shard : exchange.theirs) program.recv(peer, shard);
  }
  if (!paired) return;
  for (const Shard& shard : all_but(me.index() - 1)) program.send(members[me.index() - 1], shard);
}

Shares halving_shares(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  const Players players(members);
  Shares shares;
  shares.reserve(members, players.count());
  std::size_t chunk = 0;  // of the next player: counts up from the highest bit
  for (std::size_t i = 0; i < members; ++i) {
    if (!players.is_idle(i)) {
      shares.add({lane, first + static_cast<std::uint32_t>(chunk), 1});
      std::size_t bit = players.count() / 2;
      for (; (chunk & bit) != 0; bit /= 2) chunk ^= bit;
      chunk |= bit;
    }
    shares.end_row();
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
Program build_reduce_scatter(const RanksByNode& nodes, const Collective& collective, int rank) {
  const std::vector<int> members = ranks_with_bits_reversed(nodes.ranks());
  ProgramBuilder program(nodes.ranks(), collective, rank, static_cast<std::uint32_t>(members.size()), 1);
  halving_reduce_scatter(program, members, own_chunks(members));
  program.copy_to_output(own_chunk(rank));
  return std::move(program).finish("recursive_halving");
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  if (collective.kind == CollectiveKind::reduce_scatter) return build_reduce_scatter(nodes, collective, rank);
  const std::span<const int> members = nodes.in_order();
  const auto chunks = static_cast<std::uint32_t>(Players(members.size()).count());
  ProgramBuilder program(nodes.ranks(), collective, rank, chunks, 1);
  const Shares shares = halving_shares(members.size(), 0, 0);
  halving_reduce_scatter(program, members, shares);
  doubling_all_gather(program, members, shares);
  if (nodes.ranks() == 1) program.copy_to_output({0, 0, 1});
  return std::move(program).finish("recursive_halving");
}

}  // namespace

Algorithm recursive_halving_algorithm() {
  return {"recursive_halving",
          "pairs exchange halves; least traffic in 2 log2(p) rounds for powers of two (Rabenseifner, ICCS 2004)", supports,
          build};
}

}  // namespace shoal
