#include "src/algorithms/stages.h"

#include <algorithm>
#include <bit>

#include "src/algorithms/position.h"

namespace shoal {

void direct_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.after(k)]) program.send(members[me.after(k)], shard);
  }
  for (const Shard& shard : shares[me.index()]) {
    for (std::size_t k = 1; k < members.size(); ++k) program.recv_reduce(members[me.before(k)], shard);
  }
}

void direct_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.index()]) program.send(members[me.after(k)], shard);
  }
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.before(k)]) program.recv(members[me.before(k)], shard);
  }
}

void direct_all_to_all(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.after(k)]) program.send(members[me.after(k)], shard);
  }
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.before(k)]) program.recv(members[me.before(k)], shard);
  }
}

void ring_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  // A shard starts at the member after its owner and travels around the ring to the owner.
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.before(k)]) program.send(members[me.after(1)], shard);
    for (const Shard& shard : shares[me.before(k + 1)]) program.recv_reduce(members[me.before(1)], shard);
    // Forget only here: the receive need not wait until the send has left.
    for (const Shard& shard : shares[me.before(k)]) program.forget(shard);
  }
}

void ring_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t k = 1; k < members.size(); ++k) {
    for (const Shard& shard : shares[me.before(k - 1)]) program.send(members[me.after(1)], shard);
    for (const Shard& shard : shares[me.before(k)]) program.recv(members[me.before(1)], shard);
  }
}

void one_shot_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t k = 1; k < members.size(); ++k) program.send(members[me.after(k)], shard);
  for (const int member : members) {
    if (member != program.rank()) program.recv_reduce(member, shard);
  }
}

void recursive_doubling_all_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  const Players players(members.size());
  if (players.is_idle(me.index())) {
    program.send(members[me.index() + 1], shard);
    program.recv(members[me.index() + 1], shard);
    return;
  }
  const bool paired = players.is_paired(me.index());
  if (paired) program.recv_reduce(members[me.index() - 1], shard);
  for (std::size_t distance = 1; distance < players.count(); distance *= 2) {
    const int peer = members[players.member(players.player(me.index()) ^ distance)];
    program.send(peer, shard);
    program.recv_reduce(peer, shard);
  }
  if (paired) program.send(members[me.index() - 1], shard);
}

void binomial_broadcast(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  if (me.index() != 0) program.recv(members[me.index() - me.reach()], shard);
  for (std::size_t distance = me.reach() / 2; distance > 0; distance /= 2) {
    if (me.index() + distance < members.size()) program.send(members[me.index() + distance], shard);
  }
}

void binomial_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t distance = 1; distance < me.reach() && me.index() + distance < members.size(); distance *= 2) {
    program.recv_reduce(members[me.index() + distance], shard);
  }
  if (me.index() != 0) program.send(members[me.index() - me.reach()], shard);
}

namespace {

/// The shards of members[first] to the last of its subtree, which is `reach` wide, as they travel together.
std::vector<Shard> subtree(const ProgramBuilder& program, const Shares& shares, std::size_t first, std::size_t reach) {
  std::vector<Shard> run;
  for (std::size_t i = first; i < std::min(first + reach, shares.size()); ++i) append(run, shares[i], program.joins_shares());
  return run;
}

}  // namespace

void binomial_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t distance = 1; distance < me.reach() && me.index() + distance < members.size(); distance *= 2) {
    for (const Shard& shard : subtree(program, shares, me.index() + distance, distance)) {
      program.recv(members[me.index() + distance], shard);
    }
  }
  if (me.index() == 0) return;
  const std::vector<Shard> run = subtree(program, shares, me.index(), me.reach());
  for (const Shard& own : shares[me.index()]) {
    // Chunks that travel together must be adjacent.
    if (std::ranges::none_of(run, [&](const Shard& shard) { return shard.first == own.first && shard.count == own.count; }))
      program.copy_to_output(own);
  }
  for (const Shard& shard : run) program.send(members[me.index() - me.reach()], shard);
}

void binomial_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  if (me.index() != 0) {
    for (const Shard& shard : subtree(program, shares, me.index(), me.reach())) {
      program.recv(members[me.index() - me.reach()], shard);
    }
  }
  for (std::size_t distance = me.reach() / 2; distance > 0; distance /= 2) {
    if (me.index() + distance >= members.size()) continue;
    for (const Shard& shard : subtree(program, shares, me.index() + distance, distance)) {
      program.send(members[me.index() + distance], shard);
    }
  }
}

void chain_reduce(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::uint32_t i = 0; i < shard.count; ++i) {
    const Shard part{shard.lane, shard.first + i, 1};
    if (me.index() + 1 < members.size()) program.recv_reduce(members[me.index() + 1], part);
    // The previous part had the time of one receive to leave.
    if (i > 0) program.forget({shard.lane, part.first - 1, 1});
    if (me.index() > 0) program.send(members[me.index() - 1], part);
  }
}

void chain_broadcast(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  if (me.index() > 0) program.recv(members[me.index() - 1], shard);
  if (me.index() + 1 < members.size()) program.send(members[me.index() + 1], shard);
}

void dissemination_barrier(ProgramBuilder& program, std::span<const int> members, const Shard& shard) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t distance = 1; distance < members.size(); distance *= 2) {
    program.send(members[me.after(distance)], shard);
    program.recv_reduce(members[me.before(distance)], shard);
  }
}

std::vector<std::vector<int>> ranks_of_nodes(const Topology& topology) {
  std::vector<std::vector<int>> nodes(static_cast<std::size_t>(topology.nodes()));
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    nodes[static_cast<std::size_t>(topology.node_of_rank[static_cast<std::size_t>(rank)])].push_back(rank);
  }
  return nodes;
}

std::vector<std::vector<int>> ranks_of_nodes_from(const Topology& topology, int root) {
  std::vector<std::vector<int>> nodes = ranks_of_nodes(topology);
  std::rotate(nodes.begin(), nodes.begin() + topology.node_of_rank[static_cast<std::size_t>(root)], nodes.end());
  std::ranges::iter_swap(nodes.front().begin(), std::ranges::find(nodes.front(), root));
  return nodes;
}

std::vector<int> ranks_in_turn_from(const Topology& topology, int root) {
  std::vector<std::vector<int>> nodes = ranks_of_nodes(topology);
  std::rotate(nodes.begin(), nodes.begin() + topology.node_of_rank[static_cast<std::size_t>(root)], nodes.end());
  std::rotate(nodes.front().begin(), std::ranges::find(nodes.front(), root), nodes.front().end());
  std::vector<int> order;
  for (const auto& ranks : nodes) order.insert(order.end(), ranks.begin(), ranks.end());
  return order;
}

std::vector<int> ranks_but(const Topology& topology, int rank) {
  std::vector<int> others;
  for (int other = 0; other < topology.ranks(); ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

std::vector<int> ranks_node_by_node(const Topology& topology) {
  std::vector<int> order;
  order.reserve(topology.node_of_rank.size());
  for (const auto& ranks : ranks_of_nodes(topology)) order.insert(order.end(), ranks.begin(), ranks.end());
  return order;
}

std::vector<int> ranks_dealt(const Topology& topology) {
  const std::vector<std::vector<int>> nodes = ranks_of_nodes(topology);
  std::vector<int> order;
  order.reserve(topology.node_of_rank.size());
  for (std::size_t local = 0; order.size() < topology.node_of_rank.size(); ++local) {
    for (const auto& ranks : nodes) {
      if (local < ranks.size()) order.push_back(ranks[local]);
    }
  }
  return order;
}

std::vector<int> ranks_with_bits_reversed(int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t bit = 1; bit < order.size(); bit *= 2) order[i] = 2 * order[i] + ((i & bit) != 0 ? 1 : 0);
  }
  return order;
}

Shares own_chunks(std::span<const int> members) {
  Shares shares(members.size());
  for (std::size_t i = 0; i < members.size(); ++i) shares[i].push_back({0, static_cast<std::uint32_t>(members[i]), 1});
  return shares;
}

Shares one_chunk_each(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  Shares shares(members);
  for (std::size_t i = 0; i < members; ++i) shares[i].push_back({lane, first + static_cast<std::uint32_t>(i), 1});
  return shares;
}

}  // namespace shoal
