#include "src/algorithms/stages.h"

#include <algorithm>
#include <bit>
#include <numeric>

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

/// The chunks of members[first] to the last of its subtree, which is `reach` wide, as they travel together.
std::vector<Shard> subtree(const ProgramBuilder& program, std::span<const int> members, std::size_t first, std::size_t reach) {
  std::vector<Shard> run;
  for (const int member : members.subspan(first, std::min(reach, members.size() - first)))
    append(run, own_chunk(member), program.joins_shares());
  return run;
}

}  // namespace

void binomial_gather(ProgramBuilder& program, std::span<const int> members) {
  const Position me(program, members);
  if (!me.is_member()) return;
  for (std::size_t distance = 1; distance < me.reach() && me.index() + distance < members.size(); distance *= 2) {
    for (const Shard& shard : subtree(program, members, me.index() + distance, distance)) {
      program.recv(members[me.index() + distance], shard);
    }
  }
  if (me.index() == 0) return;
  const std::vector<Shard> run = subtree(program, members, me.index(), me.reach());
  // Chunks that travel together must be adjacent.
  const Shard own = own_chunk(program.rank());
  if (std::ranges::none_of(run, [&](const Shard& shard) { return shard.first == own.first && shard.count == own.count; }))
    program.copy_to_output(own);
  for (const Shard& shard : run) program.send(members[me.index() - me.reach()], shard);
}

void binomial_scatter(ProgramBuilder& program, std::span<const int> members) {
  const Position me(program, members);
  if (!me.is_member()) return;
  if (me.index() != 0) {
    for (const Shard& shard : subtree(program, members, me.index(), me.reach())) {
      program.recv(members[me.index() - me.reach()], shard);
    }
  }
  for (std::size_t distance = me.reach() / 2; distance > 0; distance /= 2) {
    if (me.index() + distance >= members.size()) continue;
    for (const Shard& shard : subtree(program, members, me.index() + distance, distance)) {
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

std::vector<int> ranks_of_node_from(const RanksByNode& nodes, std::size_t node, int root) {
  std::vector<int> ranks(nodes[node].begin(), nodes[node].end());
  if (node == nodes.node_of(root)) std::iter_swap(ranks.begin(), std::ranges::find(ranks, root));
  return ranks;
}

std::vector<int> leaders_from(const RanksByNode& nodes, int root) {
  const std::size_t first = nodes.node_of(root);
  std::vector<int> leaders{root};
  leaders.reserve(nodes.nodes());
  for (std::size_t node = first + 1; node < nodes.nodes(); ++node) leaders.push_back(nodes[node].front());
  for (std::size_t node = 0; node < first; ++node) leaders.push_back(nodes[node].front());
  return leaders;
}

namespace {

/// All ranks, node by node from `node`.
std::vector<int> ranks_from_node(const RanksByNode& nodes, std::size_t node) {
  std::vector<int> order(nodes.in_order().begin(), nodes.in_order().end());
  std::rotate(order.begin(), order.begin() + (nodes[node].data() - nodes.in_order().data()), order.end());
  return order;
}

}  // namespace

std::vector<int> ranks_from(const RanksByNode& nodes, int root) {
  std::vector<int> order = ranks_from_node(nodes, nodes.node_of(root));
  std::iter_swap(order.begin(), std::ranges::find(order, root));
  return order;
}

std::vector<int> ranks_in_turn_from(const RanksByNode& nodes, int root) {
  const std::size_t node = nodes.node_of(root);
  std::vector<int> order = ranks_from_node(nodes, node);
  std::rotate(order.begin(), std::ranges::find(order, root), order.begin() + std::ssize(nodes[node]));
  return order;
}

std::vector<int> ranks_but(int ranks, int rank) {
  std::vector<int> others(static_cast<std::size_t>(ranks));
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + rank);
  return others;
}

std::vector<int> ranks_dealt(const RanksByNode& nodes) {
  std::vector<int> order;
  order.reserve(nodes.in_order().size());
  for (std::size_t local = 0; local < nodes.largest(); ++local) {
    for (std::size_t node = 0; node < nodes.nodes(); ++node) {
      if (local < nodes[node].size()) order.push_back(nodes[node][local]);
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
  Shares shares;
  shares.reserve(members.size(), members.size());
  for (const int member : members) {
    shares.add(own_chunk(member));
    shares.end_row();
  }
  return shares;
}

Shares one_chunk_each(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  Shares shares;
  shares.reserve(members, members);
  for (std::size_t i = 0; i < members; ++i) {
    shares.add({lane, first + static_cast<std::uint32_t>(i), 1});
    shares.end_row();
  }
  return shares;
}

}  // namespace shoal
