// The costs of each algorithm: rounds, bytes sent by a rank and neighbours, compared with the published formulas; and which
// rank makes the last fold of a result.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <queue>
#include <set>

#include "src/algorithms/algorithm.h"
#include "src/schedule/dependencies.h"
#include "src/schedule/layout.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

/// All chunks have equally many elements, so that fractions of the message are exact.
Schedule even_schedule(std::string_view name, const Topology& topology, CollectiveKind kind) {
  Collective collective{kind, 1, DataType::float32, ReduceOp::sum, 0};
  const auto trial = build_program(**find_algorithm(name), topology, collective, 0);
  EXPECT_TRUE(trial.ok()) << trial.status().to_string();
  collective.count = std::size_t{5} * trial->message_chunks;
  auto schedule = build_schedule(**find_algorithm(name), topology, collective);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  return *std::move(schedule);
}

/// Rounds: every rank takes its steps in sequence, a message arrives one unit of time after it was sent, and bytes are free.
int rounds(const Schedule& schedule) {
  std::map<std::pair<int, int>, std::queue<int>> in_flight;  // arrival times
  std::vector<int> clock(schedule.programs.size(), 0);
  std::vector<std::size_t> next(schedule.programs.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (const Program& program : schedule.programs) {
      const auto rank = static_cast<std::size_t>(program.rank);
      for (; next[rank] < program.steps.size(); ++next[rank], moved = true) {
        const Step& step = program.steps[next[rank]];
        if (step.op == StepOp::send) in_flight[{program.rank, step.peer}].push(clock[rank] + 1);
        if (step.op != StepOp::recv && step.op != StepOp::recv_reduce) continue;
        auto& arriving = in_flight[{step.peer, program.rank}];
        if (arriving.empty()) break;
        clock[rank] = std::max(clock[rank], arriving.front());
        arriving.pop();
      }
    }
  }
  for (const Program& program : schedule.programs) {
    EXPECT_EQ(next[static_cast<std::size_t>(program.rank)], program.steps.size());
  }
  return *std::ranges::max_element(clock);
}

/// Whether each send is followed by a receive from the same peer.
bool exchanges_in_pairs(const Program& program) {
  std::vector<int> sent;
  std::vector<int> received;
  for (const Step& step : program.steps) {
    if (step.op == StepOp::send) sent.push_back(step.peer);
    if (step.op == StepOp::recv || step.op == StepOp::recv_reduce) received.push_back(step.peer);
  }
  return sent == received;
}

/// Hops: as rounds, but a step only waits for the steps whose data it needs, as in an engine.
int hops(const Schedule& schedule) {
  std::map<std::pair<int, int>, std::vector<int>> sent;  // by position on the link; -1: not known yet
  std::vector<std::vector<int>> done;
  std::vector<Dependencies> dependencies;
  for (const Program& program : schedule.programs) {
    done.emplace_back(program.steps.size(), -1);
    dependencies.emplace_back(program);
    for (const Step& step : program.steps) {
      if (step.op == StepOp::send) sent[{program.rank, step.peer}].push_back(-1);
    }
  }
  int latest = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (const Program& program : schedule.programs) {
      const auto rank = static_cast<std::size_t>(program.rank);
      std::map<int, std::size_t> sends;
      std::map<int, std::size_t> receives;
      for (std::uint32_t i = 0; i < program.steps.size(); ++i) {
        const Step& step = program.steps[i];
        int when = 0;
        if (step.op == StepOp::recv || step.op == StepOp::recv_reduce) {
          const int start = sent[{step.peer, program.rank}][receives[step.peer]++];
          when = start < 0 ? -1 : start + 1;
        }
        for (const std::uint32_t other : dependencies[rank].of(i)) {
          when = when < 0 || done[rank][other] < 0 ? -1 : std::max(when, done[rank][other]);
        }
        if (step.op == StepOp::send) sent[{program.rank, step.peer}][sends[step.peer]++] = when;
        moved |= when != done[rank][i];
        done[rank][i] = when;
        latest = std::max(latest, when);
      }
    }
  }
  for (const auto& steps : done) EXPECT_EQ(std::ranges::count(steps, -1), 0);
  return latest;
}

/// The most bytes that a rank sends, as a multiple of the input size.
double most_sent(const Schedule& schedule) {
  double most = 0;
  for (const Program& program : schedule.programs) {
    const ChunkLayout layout(schedule.collective, schedule.topology.ranks(), program.rank, program.message_chunks);
    std::size_t bytes = 0;
    for (const Step& step : program.steps) {
      if (step.op == StepOp::send) bytes += layout.bytes(step.source).size_bytes;
    }
    most = std::max(most, static_cast<double>(bytes));
  }
  return most / static_cast<double>(schedule.collective.input_bytes());
}

/// The most bytes that a node sends to other nodes, as a multiple of the input size.
double most_sent_by_a_node(const Schedule& schedule) {
  std::vector<double> bytes(static_cast<std::size_t>(schedule.topology.nodes()), 0);
  for (const Program& program : schedule.programs) {
    const ChunkLayout layout(schedule.collective, schedule.topology.ranks(), program.rank, program.message_chunks);
    for (const Step& step : program.steps) {
      if (step.op != StepOp::send || schedule.topology.link_class(program.rank, step.peer) != LinkClass::network) continue;
      bytes[static_cast<std::size_t>(schedule.topology.node_of_rank[static_cast<std::size_t>(program.rank)])] +=
          static_cast<double>(layout.bytes(step.source).size_bytes);
    }
  }
  return *std::ranges::max_element(bytes) / static_cast<double>(schedule.collective.input_bytes());
}

/// The largest number of ranks that one rank sends to.
std::size_t most_targets(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Program& program : schedule.programs) {
    std::set<int> targets;
    for (const Step& step : program.steps) {
      if (step.op == StepOp::send) targets.insert(step.peer);
    }
    most = std::max(most, targets.size());
  }
  return most;
}

int floor_log2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n))) - 1; }
int ceil_log2(int n) { return static_cast<int>(std::bit_width(static_cast<unsigned>(n - 1))); }

/// The published cost of an all_reduce among n ranks, or of a lane between n nodes.
struct Formula {
  std::string_view name;
  int (*rounds)(int n);
  double (*sent)(int n);  // in messages
};

int excess(int n) { return std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 1; }
double optimal(int n) { return 2.0 * (n - 1) / n; }

const std::vector<Formula>& formulas() {
  static const std::vector<Formula> all{
      {"direct", [](int) { return 2; }, optimal},
      {"ring", [](int n) { return 2 * (n - 1); }, optimal},
      {"circulant", [](int n) { return 2 * ceil_log2(n); }, optimal},
      {"recursive_halving", [](int n) { return 2 * floor_log2(n) + 2 * excess(n); },
       [](int n) { return optimal(1 << floor_log2(n)) + excess(n); }},
      {"recursive_doubling", [](int n) { return floor_log2(n) + 2 * excess(n); },
       [](int n) { return static_cast<double>(floor_log2(n) + excess(n)); }},
      {"one_shot", [](int) { return 1; }, [](int n) { return static_cast<double>(n - 1); }},
  };
  return all;
}

std::vector<int> counts_of_ranks() {
  std::vector<int> counts = testing::rank_counts();
  counts.erase(counts.begin());  // one rank sends nothing
  counts.push_back(256);
  return counts;
}

TEST(Costs, AllReduceMatchesItsFormula) {
  for (const Formula& formula : formulas()) {
    for (const int ranks : counts_of_ranks()) {
      const Schedule schedule = even_schedule(formula.name, Topology::uniform(1, ranks), CollectiveKind::all_reduce);
      // In recursive doubling, a rank without an idle neighbour skips the first round, which may hide one round.
      const int hidden = formula.name == "recursive_doubling" ? excess(ranks) : 0;
      EXPECT_LE(rounds(schedule), formula.rounds(ranks)) << formula.name << " of " << ranks;
      EXPECT_GE(rounds(schedule), formula.rounds(ranks) - hidden) << formula.name << " of " << ranks;
      EXPECT_DOUBLE_EQ(most_sent(schedule), formula.sent(ranks)) << formula.name << " of " << ranks;
    }
  }
}

TEST(Costs, AllGatherMatchesItsFormula) {
  for (const int ranks : counts_of_ranks()) {
    const Topology topology = Topology::uniform(1, ranks);
    const auto gather = [&](std::string_view name) { return even_schedule(name, topology, CollectiveKind::all_gather); };
    EXPECT_EQ(rounds(gather("circulant")), ceil_log2(ranks)) << ranks;
    EXPECT_EQ(rounds(gather("direct")), 1) << ranks;
    EXPECT_EQ(rounds(gather("ring")), ranks - 1) << ranks;
    for (const std::string_view name : {"circulant", "direct", "ring"}) {
      EXPECT_DOUBLE_EQ(most_sent(gather(name)), ranks - 1) << name << " of " << ranks;
    }
    if (excess(ranks) == 0) {
      EXPECT_EQ(rounds(gather("recursive_doubling")), ceil_log2(ranks)) << ranks;
      EXPECT_DOUBLE_EQ(most_sent(gather("recursive_doubling")), ranks - 1) << ranks;
    }
  }
}

TEST(Costs, ShareCollectivesMatchTheirFormulas) {
  for (const int ranks : counts_of_ranks()) {
    const Topology topology = Topology::uniform(1, ranks);
    const auto scatter = [&](std::string_view name) { return even_schedule(name, topology, CollectiveKind::reduce_scatter); };
    EXPECT_EQ(rounds(scatter("direct")), 1) << ranks;
    EXPECT_EQ(rounds(scatter("ring")), ranks - 1) << ranks;
    EXPECT_EQ(rounds(scatter("circulant")), ceil_log2(ranks)) << ranks;
    for (const std::string_view name : {"direct", "ring", "circulant"}) {
      EXPECT_DOUBLE_EQ(most_sent(scatter(name)), ranks - 1) << name << " of " << ranks;
    }
    if (excess(ranks) == 0) {
      EXPECT_EQ(rounds(scatter("recursive_halving")), ceil_log2(ranks)) << ranks;
      EXPECT_DOUBLE_EQ(most_sent(scatter("recursive_halving")), ranks - 1) << ranks;
    }
    for (const Program& program : scatter("ring").programs) EXPECT_LE(program.scratch_chunks, 2U) << ranks;
    for (const Program& program : scatter("circulant").programs) {
      EXPECT_LE(program.scratch_chunks, static_cast<std::uint32_t>(ranks + 1) / 2) << ranks;
    }
    EXPECT_EQ(rounds(even_schedule("bruck", topology, CollectiveKind::all_to_all)), ceil_log2(ranks)) << ranks;
    EXPECT_LE(most_sent(even_schedule("bruck", topology, CollectiveKind::all_to_all)), ceil_log2(ranks) * (ranks / 2)) << ranks;
    if (excess(ranks) == 0) {
      for (const Program& program : even_schedule("bruck", topology, CollectiveKind::all_to_all).programs) {
        EXPECT_TRUE(exchanges_in_pairs(program)) << "rank " << program.rank << " of " << ranks;
      }
    }
    EXPECT_EQ(rounds(even_schedule("direct", topology, CollectiveKind::all_to_all)), 1) << ranks;
    EXPECT_DOUBLE_EQ(most_sent(even_schedule("direct", topology, CollectiveKind::all_to_all)), ranks - 1) << ranks;
  }
}

TEST(Costs, RootedCollectivesMatchTheirFormulas) {
  for (const int ranks : counts_of_ranks()) {
    const Topology topology = Topology::uniform(1, ranks);
    for (const CollectiveKind kind : {CollectiveKind::reduce, CollectiveKind::broadcast}) {
      const Schedule direct = even_schedule("direct", topology, kind);
      EXPECT_EQ(hops(direct), ranks == 2 ? 1 : 2) << ranks;
      EXPECT_DOUBLE_EQ(most_sent(direct), 1) << ranks;
      EXPECT_EQ(hops(even_schedule("chain", topology, kind)), ranks - 1) << ranks;
      EXPECT_DOUBLE_EQ(most_sent(even_schedule("chain", topology, kind)), 1) << ranks;
    }
    EXPECT_EQ(hops(even_schedule("tree", topology, CollectiveKind::reduce)), floor_log2(ranks)) << ranks;
    for (const CollectiveKind kind : {CollectiveKind::gather, CollectiveKind::scatter}) {
      EXPECT_EQ(rounds(even_schedule("direct", topology, kind)), 1) << ranks;
      const Schedule tree = even_schedule("tree", topology, kind);
      // The depth of a rank is the number of bits set in its position.
      EXPECT_LE(hops(tree), ceil_log2(ranks)) << ranks;
      EXPECT_GE(hops(tree), floor_log2(ranks)) << ranks;
      EXPECT_LE(most_targets(tree), static_cast<std::size_t>(ceil_log2(ranks))) << ranks;
    }
  }
}

TEST(Costs, HierarchicalSharesLeaveANodeOnce) {
  for (const Topology& topology : {Topology::uniform(2, 4), Topology::uniform(4, 3), Topology::ragged({3, 1, 2})}) {
    const Schedule gather = even_schedule("hierarchical(direct)", topology, CollectiveKind::all_gather);
    const auto largest = static_cast<int>(topology.ranks_of_node(0).size());
    EXPECT_DOUBLE_EQ(most_sent_by_a_node(gather), largest * (topology.nodes() - 1)) << topology.shape();
    const Schedule scatter = even_schedule("hierarchical(direct)", topology, CollectiveKind::reduce_scatter);
    int smallest = topology.ranks();
    for (int node = 0; node < topology.nodes(); ++node) {
      smallest = std::min(smallest, static_cast<int>(topology.ranks_of_node(node).size()));
    }
    EXPECT_DOUBLE_EQ(most_sent_by_a_node(scatter), topology.ranks() - smallest) << topology.shape();
  }
}

TEST(Costs, TreeHopsAndBytesAreBounded) {
  for (const int ranks : counts_of_ranks()) {
    const Schedule schedule = even_schedule("tree", Topology::uniform(1, ranks), CollectiveKind::all_reduce);
    EXPECT_EQ(hops(schedule), 2 * floor_log2(ranks)) << ranks;
    EXPECT_LE(most_sent(schedule), 2) << ranks;
    EXPECT_LE(most_targets(schedule), 5U) << "three in one tree, two in the other: " << ranks;
    for (const Program& program : schedule.programs) {
      // A rank with children in both trees would fold, and so receive, more than its share.
      std::set<std::uint32_t> folded;
      for (const Step& step : program.steps) {
        if (step.op == StepOp::recv_reduce) folded.insert(step.target.first_chunk);
      }
      EXPECT_LE(folded.size(), 1U) << "rank " << program.rank << " of " << ranks << " is inside both trees";
    }
  }
}

TEST(Costs, CirculantHasAsManyNeighboursAsRounds) {
  for (const int ranks : counts_of_ranks()) {
    const Schedule schedule = even_schedule("circulant", Topology::uniform(1, ranks), CollectiveKind::all_gather);
    EXPECT_LE(most_targets(schedule), static_cast<std::size_t>(ceil_log2(ranks))) << ranks;
  }
}

TEST(Costs, CompositionsAddOneHopInsideEachNode) {
  for (const auto& [nodes, ranks] : {std::pair{2, 2}, {3, 4}, {5, 3}, {6, 2}, {8, 8}, {13, 2}, {32, 8}}) {
    const Topology topology = Topology::uniform(nodes, ranks);
    for (const Formula& formula : formulas()) {
      const std::string name = "hierarchical(" + std::string(formula.name) + ")";
      const Schedule schedule = even_schedule(name, topology, CollectiveKind::all_reduce);
      EXPECT_LE(hops(schedule), 2 + formula.rounds(nodes)) << name << " on " << topology.shape();
      if (excess(nodes) == 0) {
        EXPECT_EQ(hops(schedule), 2 + formula.rounds(nodes)) << name << " on " << topology.shape();
      }
      // All lanes together carry one message, each on its own rail.
      EXPECT_DOUBLE_EQ(most_sent_by_a_node(schedule), formula.sent(nodes)) << name << " on " << topology.shape();
    }
    const Schedule tree = even_schedule("hierarchical(tree)", topology, CollectiveKind::all_reduce);
    EXPECT_EQ(hops(tree), 2 + 2 * floor_log2(nodes)) << topology.shape();
    EXPECT_LE(most_sent_by_a_node(tree), 2) << topology.shape();
  }
}

TEST(Costs, LeaderSendsOneMessagePerNodeAndRound) {
  for (const Topology& topology : {Topology::uniform(2, 4), Topology::uniform(4, 2), Topology::ragged({3, 1, 2, 5})}) {
    const int rounds = floor_log2(topology.nodes());
    const Schedule schedule = even_schedule("hierarchical(leader,recursive_doubling)", topology, CollectiveKind::all_reduce);
    EXPECT_EQ(hops(schedule), 2 + rounds) << topology.shape();
    for (const Program& program : schedule.programs) {
      const auto sent = std::ranges::count_if(program.steps, [&](const Step& step) {
        return step.op == StepOp::send && topology.link_class(program.rank, step.peer) == LinkClass::network;
      });
      EXPECT_EQ(sent, topology.local_rank(program.rank) == 0 ? rounds : 0) << topology.shape() << ": rank " << program.rank;
    }
  }
}

TEST(Costs, EveryRankOfANodeSendsOverTheWire) {
  for (const Topology& topology : {Topology::uniform(4, 4), Topology::ragged({4, 2, 3}), Topology::ragged({1, 5})}) {
    for (const Formula& formula : formulas()) {
      const Schedule schedule =
          even_schedule("hierarchical(" + std::string(formula.name) + ")", topology, CollectiveKind::all_reduce);
      for (const Program& program : schedule.programs) {
        EXPECT_TRUE(std::ranges::any_of(program.steps,
                                        [&](const Step& step) {
                                          return step.op == StepOp::send &&
                                                 topology.link_class(program.rank, step.peer) == LinkClass::network;
                                        }))
            << formula.name << " on " << topology.shape() << ": rank " << program.rank;
      }
    }
  }
}

TEST(Costs, FlatAlgorithmsKeepLargeHopsInsideNodes) {
  // Flat algorithms, which send as little between nodes as hierarchical ones if node count and size are powers of two.
  for (const std::string_view name : {"circulant", "recursive_halving"}) {
    for (const auto& [nodes, ranks] : {std::pair{2, 4}, {4, 4}, {8, 2}, {4, 16}}) {
      const Schedule schedule = even_schedule(name, Topology::uniform(nodes, ranks), CollectiveKind::all_reduce);
      EXPECT_DOUBLE_EQ(most_sent_by_a_node(schedule), optimal(nodes)) << name << " on " << nodes << "x" << ranks;
    }
  }
}

/// Whether `slice` covers `chunk`.
bool covers(const Slice& slice, std::uint32_t chunk) {
  return chunk >= slice.first_chunk && chunk < slice.first_chunk + slice.chunk_count;
}

TEST(Costs, OneRankMakesTheLastFoldOfEachChunk) {
  // Then all ranks have the same bits, and an average is divided once. A fold must be the last one for all of its chunks or
  // none, since an engine divides all of them or none.
  std::vector<std::string> names{"direct", "ring", "circulant", "recursive_halving", "tree", "hierarchical"};
  for (const std::string_view inside : {"direct", "ring", "circulant", "recursive_halving", "leader"}) {
    for (const std::string_view outside : {"direct", "ring", "circulant", "recursive_halving", "tree"}) {
      names.push_back("hierarchical(" + std::string(inside) + "," + std::string(outside) + ")");
    }
  }
  for (const Topology& topology :
       {Topology::uniform(1, 3), Topology::uniform(1, 8), Topology::uniform(7, 1), Topology::uniform(3, 5),
        Topology::uniform(4, 4), Topology::ragged({3, 1, 2}), Topology::ragged({1, 6})}) {
    for (const std::string& name : names) {
      const Schedule schedule = even_schedule(name, topology, CollectiveKind::all_reduce);
      std::vector<int> last_folds(schedule.programs.front().message_chunks, 0);
      for (const Program& program : schedule.programs) {
        for (std::size_t i = 0; i < program.steps.size(); ++i) {
          const Step& fold = program.steps[i];
          if (fold.op != StepOp::recv_reduce) continue;
          std::uint32_t last = 0;
          for (std::uint32_t chunk = fold.target.first_chunk; chunk < fold.target.first_chunk + fold.target.chunk_count;
               ++chunk) {
            const bool overwritten =
                std::any_of(program.steps.begin() + static_cast<std::ptrdiff_t>(i) + 1, program.steps.end(),
                            [&](const Step& later) { return later.op != StepOp::send && covers(later.target, chunk); });
            if (overwritten) continue;
            ++last;
            ++last_folds[chunk];
          }
          EXPECT_TRUE(last == 0 || last == fold.target.chunk_count)
              << name << " on " << topology.shape() << ": rank " << program.rank << " step " << i;
        }
      }
      EXPECT_EQ(std::ranges::count(last_folds, 1), std::ssize(last_folds)) << name << " on " << topology.shape();
    }
  }
}

}  // namespace
}  // namespace shoal
