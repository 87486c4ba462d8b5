#include "src/selector/predict.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

namespace shoal {
namespace {

// About a millisecond of simulation.
constexpr std::size_t kMaxSimulatedSteps = 4096;
constexpr std::size_t kMaxRootedSteps = 32 * kMaxSimulatedSteps;
constexpr std::size_t kMaxRanksOfOneNode = 2;
// Enough to tell a chain of thousands of ranks from a tree.
constexpr int kMostHops = 1024;
// A simulation shows a rank at most half a percent less busy than the estimate does (SelectorPruning.LowerBoundsHold).
constexpr double kSimulatedMayBeLess = 0.95;
// Bytes that a token bucket was observed to let pass at once (probe.cc).
constexpr double kBurstBytes = 64 << 10;

constexpr auto kWire = static_cast<std::size_t>(LinkClass::network);

/// The time of the hops that no Program shows, each for a tile of half of the message.
double hidden_hops_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  if (algorithm.hidden_hops == nullptr || collective.kind != CollectiveKind::all_reduce) return 0;
  const LinkCost& cost =
      topology.cost[static_cast<std::size_t>(topology.nodes() > 1 ? LinkClass::network : LinkClass::shared_memory)];
  const double bytes = static_cast<double>(std::min(CostModel::kTileBytes, collective.input_bytes() / 2));
  return algorithm.hidden_hops(topology) * (cost.latency_us + bytes * cost.us_per_byte);
}

/// Some nodes whose ranks represent all, the smallest first.
std::vector<std::span<const int>> sample_of(const RanksByNode& nodes, const Collective& collective) {
  // Without a shared wire, a few ranks represent all.
  if (nodes.nodes() == 1) return {nodes[0].first(std::min(nodes[0].size(), kMaxRanksOfOneNode))};
  std::size_t smallest = 0;
  std::size_t largest = 0;
  for (std::size_t node = 0; node < nodes.nodes(); ++node) {
    if (nodes[node].size() < nodes[smallest].size()) smallest = node;
    if (nodes[node].size() >= nodes[largest].size()) largest = node;
  }
  // Besides the smallest and the largest node, some nodes with another role if the number of nodes is not a power of two. A
  // prediction leaves out those that turn out to have the same role (repeats_earlier()).
  std::set<std::size_t> others{largest, 1, nodes.nodes() / 2};
  if (has_root(collective.kind)) others.insert(nodes.node_of(collective.root));
  others.erase(smallest);
  std::vector<std::span<const int>> sample{nodes[smallest]};
  for (const std::size_t node : others) sample.push_back(nodes[node]);
  return sample;
}

/// Whether both ranks do the same operations on as many bytes over the same class of link, in the same order.
bool have_one_role(const SizedProgram& a, const SizedProgram& b, const RanksByNode& nodes) {
  const auto& steps_a = a.program.steps;
  const auto& steps_b = b.program.steps;
  if (steps_a.size() != steps_b.size() || a.flows != b.flows || a.bytes != b.bytes) return false;
  const auto is_wire = [&](const SizedProgram& rank, const Step& step) {
    return step.peer >= 0 && nodes.node_of(step.peer) != nodes.node_of(rank.program.rank);
  };
  return std::ranges::equal(steps_a, steps_b, [&](const Step& of_a, const Step& of_b) {
    return of_a.op == of_b.op && of_a.lane == of_b.lane && is_wire(a, of_a) == is_wire(b, of_b);
  });
}

/// Pure acknowledgement packets of rank 0. A message of a single packet causes one if its receiver does not answer with a
/// message of its own: in a ring it does not, in a pairwise exchange it does. Every larger message causes one. 4 nodes,
/// all_gather of 256 bytes: 2.6 packets a call by recursive doubling, 3.4 by circulant, of 2 messages each; 2 nodes,
/// all_reduce: 12.6 us for 1 KiB, 20 us for 2 KiB.
int acknowledgements(const SizedProgram& rank, const RanksByNode& nodes) {
  constexpr std::size_t kPacketBytes = 1448;  // TCP's payload on Ethernet
  const std::size_t node = nodes.node_of(rank.program.rank);
  std::vector<int> unanswered(nodes.in_order().size());  // by peer: messages sent to it minus those received
  int packets = 0;
  for (std::size_t i = 0; i < rank.bytes.size(); ++i) {
    const Step& step = rank.program.steps[i];
    if (step.peer < 0 || nodes.node_of(step.peer) == node) continue;
    if (rank.bytes[i] > kPacketBytes) {
      ++packets;
    } else {
      unanswered[static_cast<std::size_t>(step.peer)] += step.op == StepOp::send ? 1 : -1;
    }
  }
  for (const int messages : unanswered) packets += std::abs(messages);
  return packets;
}

/// A message to or from `peer`.
struct Hop {
  int peer = -1;
  std::size_t bytes = 0;
};

/// If all that the rank sends (or else receives) has one peer: that peer, and the smallest message.
std::optional<Hop> only_hop(const SizedProgram& rank, bool sends) {
  std::optional<Hop> hop;
  for (std::size_t i = 0; i < rank.bytes.size(); ++i) {
    const Step& step = rank.program.steps[i];
    if (step.peer < 0 || (step.op == StepOp::send) != sends) continue;
    if (hop && hop->peer != step.peer) return {};
    hop = Hop{step.peer, std::min(rank.bytes[i], hop ? hop->bytes : rank.bytes[i])};
  }
  return hop;
}

/// Differences between shares change the time little compared with the sum of the shares.
Collective with_equal_shares(const Collective& collective, int ranks) {
  Collective equal = collective;
  equal.counts = {};
  if (!collective.counts.empty()) equal.count = collective.count / static_cast<std::size_t>(ranks);
  return equal;
}

Topology of_short_messages(Topology topology) {
  topology.cost[kWire].us_per_byte = topology.cost[kWire].burst_us_per_byte;
  return topology;
}

Topology of_free_messages(Topology topology) {
  for (LinkCost& cost : topology.cost) cost.overhead_us = 0;
  return topology;
}

}  // namespace

CallCosts::Bursts::Bursts(const Topology& topology)
    : short_messages(of_short_messages(topology)),
      model(short_messages),
      free_messages(of_free_messages(topology)),
      tokens(free_messages),
      most_us(kBurstBytes * topology.cost[kWire].us_per_byte) {}

CallCosts::CallCosts(const Topology& topology) : topology_(topology), steady_(topology_) {
  if (topology.cost[kWire].burst_us_per_byte >= 0 && topology.nodes() > 1) bursts_.emplace(topology);
}

const CostModel& CallCosts::least() const noexcept {
  const LinkCost& wire = topology_.cost[kWire];
  return bursts_ && wire.burst_us_per_byte < wire.us_per_byte ? bursts_->model : steady_;
}

Prediction::Prediction(const Algorithm& algorithm, const RanksByNode& nodes, const Collective& collective, bool equal_shares)
    : algorithm_(algorithm),
      nodes_(nodes),
      collective_(equal_shares ? with_equal_shares(collective, nodes.ranks()) : collective),
      sample_(sample_of(nodes, collective)) {}

double Prediction::us(const CallCosts& costs) { return *us_up_to(std::numeric_limits<double>::infinity(), costs); }

std::optional<double> Prediction::us_up_to(double limit_us, const CallCosts& costs) {
  if (!is_simulated()) return estimate_up_to(limit_us, costs);
  const auto tokens = tokens_us(costs);
  const double us = tokens ? std::max(*tokens, simulated_us(costs.bursts()->model)) : simulated_us(costs.steady());
  if (us > limit_us) return {};
  return us;
}

double Prediction::least_us(const CallCosts& costs) {
  const SizedProgram& first = program(sample_.front().front());
  const bool bursts = may_burst(costs) && demand_of(first, costs.bursts()->tokens).busy_us() <= costs.bursts()->most_us;
  const CostModel& least = bursts ? costs.least() : costs.steady();
  return kSimulatedMayBeLess * std::max(demand_of(first, least).busy_us(), path_us(least));
}

double Prediction::estimate_us(const CostModel& costs) {
  double most_us = 0;
  for (std::size_t i = 0; i < sample_.size(); ++i) {
    if (repeats_earlier(i)) continue;
    const std::vector<EqualRanks> roles = roles_of(sample_[i]);
    Demand demand;
    for (const EqualRanks& equal : roles) demand.add_ranks(demand_of(*equal.program, costs), equal.ranks);
    most_us = std::max(most_us, node_us(roles, demand, costs));
  }
  return most_us + hidden_hops_us(algorithm_, costs.topology(), collective_);
}

double Prediction::busy_us(const CostModel& costs) {
  double most_us = 0;
  for (std::size_t i = 0; i < sample_.size(); ++i) {
    if (repeats_earlier(i)) continue;
    Demand demand;
    for (const EqualRanks& equal : roles_of(sample_[i])) demand.add_ranks(demand_of(*equal.program, costs), equal.ranks);
    most_us = std::max(most_us, demand.busy_us());
  }
  return most_us;
}

double Prediction::work_us(const CallCosts& costs) {
  return busy_us(tokens_us(costs) ? costs.bursts()->model : costs.steady());
}

const SizedProgram& Prediction::program(int rank) {
  const auto known = programs_.find(rank);
  if (known != programs_.end()) return known->second;
  return programs_.try_emplace(rank, algorithm_.build(nodes_, collective_, rank), nodes_, collective_).first->second;
}

bool Prediction::has_role_of(int rank, int other) { return have_one_role(program(rank), program(other), nodes_); }

/// Whether the Program has a step for each rank of the job, as in a ring. Then ranks between two ranks with one role have that
/// role too, so few of these long Programs serve. In trees and exchanges of pairs, whose Programs are short, they may have
/// another one.
bool Prediction::has_long_program(int rank) { return program(rank).program.steps.size() >= nodes_.in_order().size(); }

/// All ranks of a node. Those between the first and the last one are one entry if the outer two of them have one role.
std::vector<EqualRanks> Prediction::roles_of(std::span<const int> node) {
  const auto all = [&](std::span<const int> ranks) {
    std::vector<EqualRanks> roles;
    for (const int rank : ranks) roles.push_back({&program(rank)});
    return roles;
  };
  const bool may_be_equal = node.size() > 4 && collective_.counts.empty() && has_long_program(node.front());
  if (!may_be_equal || !has_role_of(node[1], node[node.size() - 2])) return all(node);
  return {{&program(node.front())}, {&program(node[1]), static_cast<int>(node.size()) - 2}, {&program(node.back())}};
}

/// Whether node `i` of the sample has as many ranks as an earlier one, and their first and last ranks have the same roles. Then
/// the ranks between them have too if their Programs are long.
bool Prediction::repeats_earlier(std::size_t i) {
  const std::span<const int> node = sample_[i];
  if (!has_long_program(node.front())) return false;
  const auto is_repeated = [&](std::span<const int> earlier) {
    return earlier.size() == node.size() && has_role_of(earlier.front(), node.front()) &&
           has_role_of(earlier.back(), node.back());
  };
  return std::any_of(sample_.begin(), sample_.begin() + static_cast<std::ptrdiff_t>(i), is_repeated);
}

bool Prediction::is_symmetric() const noexcept {
  return !has_root(collective_.kind) && collective_.kind != CollectiveKind::barrier;
}

/// Some node sends at least one rank's share: checked before Programs are built.
bool Prediction::may_burst(const CallCosts& costs) const noexcept {
  return costs.bursts() && static_cast<double>(collective_.input_bytes()) <= kBurstBytes * nodes_.ranks();
}

/// A rooted collective is not symmetric, but mostly short: it is simulated up to a larger size.
bool Prediction::is_simulated() {
  const std::size_t steps = program(0).program.steps.size() * nodes_.in_order().size();
  return steps <= (has_root(collective_.kind) ? kMaxRootedSteps : kMaxSimulatedSteps);
}

/// With a root: a lower bound of the time of the first tile on its path between the root and the last rank, over at most
/// kMostHops hops, up to a rank that has several peers. 0 where the prediction is an estimate, which does not follow paths.
double Prediction::path_us(const CostModel& costs) {
  if (!has_root(collective_.kind) || !is_simulated()) return 0;
  const bool to_root = collective_.kind == CollectiveKind::reduce || collective_.kind == CollectiveKind::gather;
  const std::span<const int> order = nodes_.in_order();
  const auto root = std::ranges::find(order, collective_.root);
  int rank = root == order.begin() ? order.back() : *(root - 1);  // the last one of a chain
  double us = 0;
  for (int hops = 0; hops < kMostHops && rank != collective_.root; ++hops) {
    const auto hop = only_hop(SizedProgram(algorithm_.build(nodes_, collective_, rank), nodes_, collective_), to_root);
    if (!hop) break;
    us += costs.flight_us(rank, hop->peer) + costs.port_us(rank, hop->peer, costs.tile(hop->bytes));
    rank = hop->peer;
  }
  return us;
}

/// The time of acknowledgements. In a tree, rank 0 does not represent which rank waits for which.
double Prediction::added_us(const CostModel& costs) {
  if (!is_symmetric()) return 0;
  if (!acknowledgements_) acknowledgements_ = acknowledgements(program(0), nodes_);
  return *acknowledgements_ * costs.topology().cost[kWire].overhead();
}

double Prediction::simulated_us(const CostModel& costs) {
  const auto schedule = build_schedule(algorithm_, costs.topology(), collective_);
  const auto simulation = schedule.ok() ? simulate(*schedule) : Result<Simulation>(schedule.status());
  return added_us(costs) + (simulation.ok() ? simulation->total_us : estimate_us(costs));
}

/// Until the tokens of a call have accumulated; nothing if the call does not pass as a burst.
std::optional<double> Prediction::tokens_us(const CallCosts& costs) {
  if (!may_burst(costs)) return {};
  const double us = busy_us(costs.bursts()->tokens);
  if (us > costs.bursts()->most_us) return {};
  return us;
}

/// The estimate at one kind of costs, which grows with each rank and node.
class Prediction::Rating {
 public:
  Rating(const CostModel& costs, Prediction& prediction)
      : costs_(costs),
        added_us_(prediction.added_us(costs)),
        hidden_us_(hidden_hops_us(prediction.algorithm_, costs.topology(), prediction.collective_)) {}

  void add(const EqualRanks& equal) {
    node_.push_back(equal);
    demand_.add_ranks(demand_of(*equal.program, costs_), equal.ranks);
  }
  /// Of the ranks of the current node so far.
  [[nodiscard]] double busy_us() const { return demand_.busy_us(); }
  void end_node() {
    most_us_ = std::max(most_us_, node_us(node_, demand_, costs_));
    node_.clear();
    demand_ = {};
  }
  /// Of the nodes so far.
  [[nodiscard]] double us() const { return added_us_ + (most_us_ + hidden_us_); }

 private:
  const CostModel& costs_;
  double added_us_;
  double hidden_us_;
  double most_us_ = 0;
  std::vector<EqualRanks> node_;
  Demand demand_;
};

std::optional<double> Prediction::estimate_up_to(double limit_us, const CallCosts& costs) {
  Rating steady(costs.steady(), *this);
  std::optional<Rating> burst;  // until the tokens of a node show that the call is none
  if (may_burst(costs)) burst.emplace(costs.bursts()->model, *this);
  double tokens_us = 0;
  for (std::size_t i = 0; i < sample_.size(); ++i) {
    if (repeats_earlier(i)) continue;
    Demand tokens;
    for (const EqualRanks& equal : roles_of(sample_[i])) {
      steady.add(equal);
      if (burst) {
        burst->add(equal);
        tokens.add_ranks(demand_of(*equal.program, costs.bursts()->tokens), equal.ranks);
        tokens_us = std::max(tokens_us, tokens.busy_us());
        if (tokens_us > costs.bursts()->most_us) burst.reset();
      }
      if (std::min(steady.busy_us(), burst ? burst->busy_us() : steady.busy_us()) > limit_us) return {};
    }
    steady.end_node();
    if (burst) burst->end_node();
    if (std::min(steady.us(), burst ? std::max(tokens_us, burst->us()) : steady.us()) > limit_us) return {};
  }
  const double us = burst ? std::max(tokens_us, burst->us()) : steady.us();
  if (us > limit_us) return {};
  return us;
}

double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  return Prediction(algorithm, nodes, collective, false).estimate_us(CostModel(topology));
}

double busy_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  return Prediction(algorithm, nodes, collective, false).busy_us(CostModel(topology));
}

double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  return Prediction(algorithm, nodes, collective, true).us(CallCosts(topology));
}

double work_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  return Prediction(algorithm, nodes, collective, false).work_us(CallCosts(topology));
}

double least_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  const RanksByNode nodes(topology);
  return Prediction(algorithm, nodes, collective, true).least_us(CallCosts(topology));
}

PredictedTerms predict_terms(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  Topology free_bytes = topology;
  for (LinkCost& cost : free_bytes.cost) cost.us_per_byte = 0;
  Topology free_arithmetic = topology;
  free_arithmetic.reduce_us_per_byte = 0;
  Topology only_latency = free_bytes;
  only_latency.reduce_us_per_byte = 0;
  const RanksByNode nodes(topology);
  Prediction prediction(algorithm, nodes, collective, true);
  const double total_us = prediction.us(CallCosts(topology));
  const auto saved_us = [&](const Topology& without) { return std::max(0.0, total_us - prediction.us(CallCosts(without))); };
  return {prediction.us(CallCosts(only_latency)), saved_us(free_bytes), saved_us(free_arithmetic)};
}

}  // namespace shoal
