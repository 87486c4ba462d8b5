// hierarchical: reduce-scatter inside each node, all_reduce of each strand between the nodes, all_gather inside each node.
// hierarchical_shares.cc has the halves of that, reduce_scatter and all_gather.
//
// The message is cut into as many strands as the largest node has ranks. On node n, local rank s mod L_n holds strand s, so
// every rank of every node uses the network (one strand per rail). Each byte crosses a node's wire once in each direction if
// the stage between the nodes sends the minimum. Any of the stages listed here may run between the nodes; inside them, any
// stage that deals in shares.

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "src/algorithms/hierarchical.h"
#include "src/algorithms/position.h"
#include "src/algorithms/registry.h"
#include "src/algorithms/stages.h"

namespace shoal {
namespace {

// Up to this many nodes "hierarchical" sends a strand directly to the owners of its chunks (two hops). With more nodes the
// fan-in is too large.
constexpr std::size_t kMaxDirectNodes = 16;
// Large messages are cut into segments, so that the node gathers one segment while the network still transfers the next. A
// chunk stays larger than this, and a Program has at most kMaxLanes lanes unless the strands alone exceed that.
constexpr std::size_t kSegmentChunkBytes = 256 << 10;
constexpr std::size_t kMaxSegments = 8;
constexpr std::size_t kMaxLanes = 64;

/// An all_reduce in two halves. `shares` returns which member owns which of the `chunks` of a strand, from chunk `first` on.
/// `taken` returns which of them, counted from 0, the first step of the reduce_scatter of members[member] takes.
struct Stage {
  std::string_view name;
  std::size_t (*chunks)(std::size_t members);
  Shares (*shares)(std::size_t members, std::uint32_t lane, std::uint32_t first);
  std::size_t (*taken)(std::size_t members, std::size_t member);
  void (*reduce_scatter)(ProgramBuilder& program, std::span<const int> members, const Shares& shares);
  void (*all_gather)(ProgramBuilder& program, std::span<const int> members, const Shares& shares);
  bool one_strand = false;  ///< inside nodes: the message stays whole and goes through the first rank of each node
};

template <std::size_t count>
std::size_t exactly(std::size_t) {
  return count;
}
std::size_t one_a_member(std::size_t members) { return members; }
std::size_t one_a_player(std::size_t members) { return std::bit_floor(members); }

/// A ring takes the chunks in descending order, so that its sends ascend from the chunk after its own, as those of direct do.
Shares ring_shares(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  Shares shares;
  shares.reserve(members, members);
  for (std::size_t i = members; i-- > 0;) {
    shares.add({lane, first + static_cast<std::uint32_t>(i), 1});
    shares.end_row();
  }
  return shares;
}

/// For stages that reduce and gather in one step: no member owns a part, and the strand lies at the first place.
template <std::uint32_t count>
Shares one_shard(std::size_t members, std::uint32_t lane, std::uint32_t first) {
  Shares shares;
  shares.add({lane, first, count});
  for (std::size_t i = 0; i < members; ++i) shares.end_row();
  return shares;
}
template <auto all_reduce>
void in_one_go(ProgramBuilder& program, std::span<const int> members, const Shares& shares) {
  all_reduce(program, members, shares.values().front());
}
void is_done(ProgramBuilder&, std::span<const int>, const Shares&) {}

std::size_t first_chunk(std::size_t, std::size_t) { return 0; }
std::size_t next_in_order(std::size_t members, std::size_t member) { return (member + 1) % members; }
std::size_t previous_on_ring(std::size_t members, std::size_t member) { return (members - member) % members; }
std::size_t at_longest_skip(std::size_t members, std::size_t member) { return (member + (members + 1) / 2) % members; }
/// The half of the chunks that the partner of the first exchange keeps. A member of a pair first takes all chunks.
std::size_t half_of_partner(std::size_t members, std::size_t member) {
  const Players players(members);
  return players.is_paired(member) || players.player(member) % 2 == 1 ? 0 : players.count() / 2;
}

// The stages that take any shares run inside a node too. The last one is direct with one rank as owner of all shares: if the
// cost is per message rather than per byte, a single rank of each node should send over the network.
constexpr std::array kNodeStages{
    Stage{"direct", one_a_member, one_chunk_each, next_in_order, direct_reduce_scatter, direct_all_gather},
    Stage{"ring", one_a_member, ring_shares, previous_on_ring, ring_reduce_scatter, ring_all_gather},
    Stage{"circulant", one_a_member, one_chunk_each, at_longest_skip, circulant_reduce_scatter, circulant_all_gather},
    Stage{"recursive_halving", one_a_player, halving_shares, half_of_partner, halving_reduce_scatter, doubling_all_gather},
    Stage{"leader", one_a_member, one_chunk_each, next_in_order, direct_reduce_scatter, direct_all_gather, true},
};
constexpr std::array kWireStages{
    kNodeStages[0],
    kNodeStages[1],
    kNodeStages[2],
    kNodeStages[3],
    Stage{"recursive_doubling", exactly<1>, one_shard<1>, first_chunk, in_one_go<recursive_doubling_all_reduce>, is_done},
    Stage{"one_shot", exactly<1>, one_shard<1>, first_chunk, in_one_go<one_shot_all_reduce>, is_done},
    Stage{"tree", exactly<2>, one_shard<2>, first_chunk, in_one_go<two_tree_all_reduce>, is_done},
};
constexpr std::size_t kDirect = 0;  // in both arrays
constexpr std::size_t kRing = 1;
constexpr std::string_view kHalving = "recursive_halving";
constexpr std::string_view kTree = "tree";
// The first stages of both arrays deal every strand in shares, so halves of them serve reduce_scatter and all_gather.
constexpr std::size_t kDealing = 4;
constexpr std::size_t kLeader = kNodeStages.size() - 1;

/// How a message is dealt to segments, strands and nodes: chunk (segment * strands + strand) * chunks + i is chunk i of a
/// strand. Without a network each rank takes the place of a node.
struct Deal {
  std::size_t nodes = 0;
  std::uint32_t node = 0;      // of the rank whose Program is built
  std::span<const int> ranks;  // of that node
  std::uint32_t local = 0;     // local rank of that rank
  std::uint32_t strands = 0;
  std::uint32_t segments = 0;
  std::uint32_t chunks = 0;
  std::uint32_t lanes_per_segment = 1;

  [[nodiscard]] Shard shard(std::uint32_t segment, std::uint32_t strand, std::uint32_t first, std::uint32_t count) const {
    return {segment * lanes_per_segment + strand % lanes_per_segment, (segment * strands + strand) * chunks + first, count};
  }
};

Deal make_deal(const RanksByNode& nodes, const Collective& collective, int rank, const Stage& inside, const Stage& between) {
  Deal deal;
  if (nodes.nodes() == 1) {
    deal.nodes = nodes.in_order().size();
    deal.node = static_cast<std::uint32_t>(rank);
    deal.ranks = nodes.in_order().subspan(deal.node, 1);
    deal.strands = 1;
  } else {
    deal.nodes = nodes.nodes();
    deal.node = static_cast<std::uint32_t>(nodes.node_of(rank));
    deal.ranks = nodes[deal.node];
    deal.strands = inside.one_strand ? 1 : static_cast<std::uint32_t>(nodes.largest());
  }
  deal.local = static_cast<std::uint32_t>(std::ranges::find(deal.ranks, rank) - deal.ranks.begin());
  deal.chunks = static_cast<std::uint32_t>(between.chunks(deal.nodes));
  const std::size_t most = std::clamp<std::size_t>(kMaxLanes / deal.strands, 1, kMaxSegments);
  const std::size_t chunk_bytes = collective.input_bytes() / (std::size_t{deal.strands} * deal.chunks);
  deal.segments = static_cast<std::uint32_t>(std::clamp<std::size_t>(chunk_bytes / kSegmentChunkBytes, 1, most));
  // If a node folds in several rounds, a separate lane for each strand would merge all rounds into one n-way fold.
  if (inside.name == kNodeStages[kDirect].name) deal.lanes_per_segment = deal.strands;
  return deal;
}

/// Runs `move` among the ranks of this node, for the chunks of a segment: first the chunks from `first` on of all strands,
/// then those before `first`.
template <typename Move>
void inside_node(ProgramBuilder& program, const Deal& deal, std::uint32_t segment, std::uint32_t first, Move move) {
  for (const auto& [begin, end] : {std::pair{first, deal.chunks}, std::pair{0U, first}}) {
    if (begin == end) continue;
    Shares shares;
    for (std::uint32_t local = 0; local < deal.ranks.size(); ++local) {
      for (std::uint32_t strand = local; strand < deal.strands; strand += static_cast<std::uint32_t>(deal.ranks.size())) {
        shares.add(deal.shard(segment, strand, begin, end - begin));
      }
      shares.end_row();
    }
    move(program, deal.ranks, shares);
  }
}

/// A strand that the rank holds, and the ranks that hold it, one on each node.
struct Strand {
  std::uint32_t index = 0;
  std::vector<int> members;
};

std::vector<Strand> strands_of(const RanksByNode& nodes, const Deal& deal) {
  std::vector<Strand> strands;
  for (std::uint32_t s = deal.local; s < deal.strands; s += static_cast<std::uint32_t>(deal.ranks.size())) {
    Strand strand{s, std::vector<int>(deal.nodes)};
    for (std::size_t n = 0; n < deal.nodes; ++n) {
      strand.members[n] = nodes.nodes() == 1 ? nodes.in_order()[n] : nodes[n][s % nodes[n].size()];
    }
    strands.push_back(std::move(strand));
  }
  return strands;
}

/// `shares`, which are in lane 0 and count chunks from 0, in `lane` and from `first` on.
Shares moved(Shares shares, std::uint32_t lane, std::uint32_t first) {
  for (Shard& shard : shares.values()) {
    shard.lane = lane;
    shard.first += first;
  }
  return shares;
}

Program compose_all_reduce(const RanksByNode& nodes, const Collective& collective, int rank, const Stage& inside,
                           const Stage& outside, std::string name) {
  const Stage& between = nodes.nodes() > 1 ? outside : inside;
  const Deal deal = make_deal(nodes, collective, rank, inside, between);
  const std::vector<Strand> strands = strands_of(nodes, deal);
  const std::uint32_t chunks = deal.segments * deal.strands * deal.chunks;
  ProgramBuilder program(nodes.ranks(), collective, rank, chunks, deal.segments * deal.lanes_per_segment);

  // `taken`: the chunk of a strand that the stage between nodes sends first. `owned`: the chunk that it completes first. Both
  // are the same for all ranks of a node.
  const auto taken = static_cast<std::uint32_t>(between.taken(deal.nodes, deal.node));
  const Shares shares = between.shares(deal.nodes, 0, 0);
  const std::uint32_t owned = shares[deal.node].empty() ? 0 : shares[deal.node].front().first;

  // The node first reduces the chunk that the network sends first, and reduces all segments before it gathers any, so that
  // the network never waits for the node.
  for (std::uint32_t g = 0; g < deal.segments; ++g) inside_node(program, deal, g, taken, inside.reduce_scatter);
  const auto between_nodes = [&](std::uint32_t g, auto move) {
    for (const Strand& strand : strands) {
      const Shard whole = deal.shard(g, strand.index, 0, deal.chunks);
      move(program, strand.members, moved(shares, whole.lane, whole.first));
    }
  };
  const auto gather = [&](std::uint32_t g) {
    between_nodes(g, between.all_gather);
    inside_node(program, deal, g, owned, inside.all_gather);
  };
  for (std::uint32_t g = 0; g < deal.segments; ++g) {
    between_nodes(g, between.reduce_scatter);
    if (g > 0) gather(g - 1);
  }
  gather(deal.segments - 1);
  if (nodes.ranks() == 1) program.copy_to_output({0, 0, chunks});
  return std::move(program).finish(std::move(name));
}

/// "hierarchical(ring)" if NODE is direct, else for example "hierarchical(circulant,ring)".
std::string name_of(std::size_t inside, std::size_t outside) {
  const std::string node_part = inside == kDirect ? "" : std::string(kNodeStages[inside].name) + ",";
  return "hierarchical(" + node_part + std::string(kWireStages[outside].name) + ")";
}

template <std::size_t inside, std::size_t outside>
Status supports_pair(const Topology& topology, const Collective& collective) {
  constexpr bool kDealsInShares = inside < kDealing && outside < kDealing;
  if (!kDealsInShares) return serves_only(collective.kind, {CollectiveKind::all_reduce});
  // An idle rank gets its share from its neighbour, and the neighbour cannot know when the last contribution is in.
  const int last = topology.nodes() > 1 ? topology.nodes() : topology.ranks();
  const Stage& last_stage = topology.nodes() > 1 ? kWireStages[outside] : kNodeStages[inside];
  if (collective.kind == CollectiveKind::reduce_scatter && last_stage.name == kHalving &&
      !std::has_single_bit(static_cast<unsigned>(last))) {
    return {StatusCode::unsupported, "does not serve reduce_scatter unless the nodes are a power of two"};
  }
  return serves_only(collective.kind, {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter});
}

template <std::size_t inside, std::size_t outside>
Program build_pair(const RanksByNode& nodes, const Collective& collective, int rank) {
  const Stage& node = kNodeStages[inside];
  const Stage& wire = kWireStages[outside];
  if (collective.kind != CollectiveKind::all_reduce) {
    const bool gathers = collective.kind == CollectiveKind::all_gather;
    const auto move = [&](const Stage& stage) { return gathers ? stage.all_gather : stage.reduce_scatter; };
    return compose_shares(nodes, collective, rank, move(node), move(wire), name_of(inside, outside));
  }
  return compose_all_reduce(nodes, collective, rank, node, wire, name_of(inside, outside));
}

Program build(const RanksByNode& nodes, const Collective& collective, int rank) {
  const bool few = nodes.nodes() <= kMaxDirectNodes;
  return (few ? build_pair<kDirect, kDirect> : build_pair<kDirect, kRing>)(nodes, collective, rank);
}

int tree_hidden_hops(const Topology& topology) { return two_tree_hidden_hops(topology.nodes()); }

struct Pair {
  decltype(Algorithm::supports) supports;
  decltype(Algorithm::build) build;
};

template <std::size_t... i>
constexpr std::array<Pair, sizeof...(i)> all_pairs(std::index_sequence<i...>) {
  constexpr std::size_t kWires = kWireStages.size();
  return {Pair{supports_pair<i / kWires, i % kWires>, build_pair<i / kWires, i % kWires>}...};
}

}  // namespace

Algorithm hierarchical_algorithm() {
  return {"hierarchical", "node reduce-scatter, all_reduce of every strand between nodes, node all_gather (Herring, SC20)",
          supports_pair<kDirect, kDirect>, build};
}

std::span<const Algorithm> hierarchical_compositions() {
  constexpr std::size_t kCount = kNodeStages.size() * kWireStages.size();
  struct Text {
    std::string name, summary;
  };
  static const std::array all_texts = [] {
    std::array<Text, kCount> texts;
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto [inside, outside] = std::pair{i / kWireStages.size(), i % kWireStages.size()};
      texts[i].name = name_of(inside, outside);
      texts[i].summary = std::string(kNodeStages[inside].name) + " inside the nodes, then " +
                         std::string(kWireStages[outside].name) + " between them for " +
                         (inside == kLeader ? "their first ranks" : "each rail's strand") + ", and back";
    }
    return texts;
  }();
  static const std::array all_algorithms = [] {
    constexpr auto kPairs = all_pairs(std::make_index_sequence<kCount>());
    std::array<Algorithm, kCount> all{};
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool is_tree = kWireStages[i % kWireStages.size()].name == kTree;
      all[i] = {all_texts[i].name, all_texts[i].summary, kPairs[i].supports, kPairs[i].build,
                is_tree ? tree_hidden_hops : nullptr};
    }
    return all;
  }();
  return all_algorithms;
}

std::vector<Algorithm> hierarchical_candidates() {
  const auto all = hierarchical_compositions();
  std::vector<Algorithm> candidates;
  // All compositions with direct inside nodes, except the first, which equals plain "hierarchical"; and those that send small
  // messages through a leader.
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t inside = i / kWireStages.size();
    const std::string_view wire = kWireStages[i % kWireStages.size()].name;
    const bool few_bytes = wire == "recursive_doubling" || wire == "one_shot" || wire == kHalving;
    if ((inside == kDirect && i != kDirect) || (inside == kLeader && few_bytes)) candidates.push_back(all[i]);
  }
  return candidates;
}

std::string hierarchical_names() {
  std::string names = "hierarchical(NODE,WIRE) with NODE one of";
  for (const Stage& stage : kNodeStages) names += " " + std::string(stage.name);
  names += ", and WIRE one of";
  for (const Stage& stage : kWireStages) names += " " + std::string(stage.name);
  return names;
}

}  // namespace shoal
