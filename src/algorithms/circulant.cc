// circulant: reduce-scatter and all_gather on a circulant graph whose skips are the number of ranks, halved repeatedly. As
// little traffic as the ring in ceil(log2 p) rounds each, for every p.
//
// All_reduce: 2 ceil(log2 p) rounds, 2 n (p - 1) / p bytes out of every rank; all_gather and reduce_scatter of shares of n:
// half the rounds, n (p - 1) bytes. The reduce_scatter keeps half of the message in scratch.

#include <numeric>
#include <utility>

#include "src/algorithms/position.h"
#include "src/algorithms/registry.h"

namespace shoal {
namespace {

/// The shards of `count` members from `first` on, which travel together.
std::vector<Shard> run_of(const ProgramBuilder& program, const Shares& shares, std::size_t first, std::size_t count) {
  std::vector<Shard> run;
  for (std::size_t i = 0; i < count; ++i) append(run, shares[(first + i) % shares.size()], program.joins_shares());
  return run;
}

/// The rounds of a reduce-scatter as {skip, how many shards a member still holds}.
std::vector<std::pair<std::size_t, std::size_t>> rounds_of(std::size_t members) {
  std::vector<std::pair<std::size_t, std::size_t>> rounds;
  for (std::size_t held = members; held > 1; held = (held + 1) / 2) rounds.emplace_back((held + 1) / 2, held);
  return rounds;
}

}  // namespace

void circulant_reduce_scatter(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  // The first `folded` shards, counted from this member's own, hold the value of more than one member. A run is cut there,
  // because the shards behind it still lie in the input.
  std::size_t folded = 0;
  for (const auto& [skip, held] : rounds_of(members.size())) {
    const std::size_t cut = std::clamp(folded, skip, held);
    for (const auto& [begin, end] : {std::pair{skip, cut}, std::pair{cut, held}}) {
      for (const Shard& shard : run_of(program, shares, me.after(begin), end - begin)) {
        program.send(members[me.after(skip)], shard);
      }
    }
    for (const auto& [begin, end] : {std::pair{skip, cut}, std::pair{cut, held}}) {
      for (const Shard& shard : run_of(program, shares, me.after(begin - skip), end - begin)) {
        program.recv_reduce(members[me.before(skip)], shard);
      }
    }
    for (const Shard& shard : run_of(program, shares, me.after(skip), held - skip)) program.forget(shard);
    folded = std::max(folded, held - skip);
  }
}

void circulant_all_gather(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  const Position me(program, members);
  if (!me.is_member()) return;
  auto rounds = rounds_of(members.size());
  std::ranges::reverse(rounds);
  for (const auto& [skip, held] : rounds) {
    for (const Shard& shard : run_of(program, shares, me.index(), held - skip)) program.send(members[me.before(skip)], shard);
    for (const Shard& shard : run_of(program, shares, me.after(skip), held - skip))
      program.recv(members[me.after(skip)], shard);
  }
}

namespace {

Status supports(const Topology&, const Collective& collective) {
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter});
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  const auto ranks = static_cast<std::uint32_t>(nodes.ranks());
  ProgramBuilder program(nodes.ranks(), collective, rank, ranks, 1);
  const Shares shares = one_chunk_each(ranks, 0, 0);
  if (collective.kind != CollectiveKind::all_reduce) {
    // In rank order, so that the shares of consecutive members are adjacent.
    std::vector<int> members(ranks);
    std::iota(members.begin(), members.end(), 0);
    const Shard own = own_chunk(rank);
    if (collective.kind == CollectiveKind::reduce_scatter) circulant_reduce_scatter(program, members, shares);
    // The first round of an all_gather could send from the input, but later rounds send this share together with received
    // ones.
    program.copy_to_output(own);
    if (collective.kind == CollectiveKind::all_gather) circulant_all_gather(program, members, shares);
  } else {
    // The long skips carry most bytes. Dealt like this, they stay inside the nodes if all nodes have the same number of
    // ranks.
    const std::vector<int> members = ranks_dealt(nodes);
    circulant_reduce_scatter(program, members, shares);
    circulant_all_gather(program, members, shares);
    if (ranks == 1) program.copy_to_output({0, 0, 1});
  }
  return std::move(program).finish("circulant");
}

}  // namespace

Algorithm circulant_algorithm() {
  return {"circulant", "skips that halve; least traffic in 2 ceil(log2 p) rounds for every p (Traeff, arXiv 2410.14234)",
          supports, build};
}

}  // namespace shoal
