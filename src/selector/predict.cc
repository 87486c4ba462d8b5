#include "src/selector/predict.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "src/algorithms/stages.h"
#include "src/schedule/layout.h"
#include "src/simulate/simulator.h"

namespace shoal {
namespace {

// About a millisecond of simulation.
constexpr std::size_t kMaxSimulatedSteps = 4096;
constexpr std::size_t kMaxRootedSteps = 32 * kMaxSimulatedSteps;
constexpr std::size_t kMaxRanksOfOneNode = 2;
// A simulation shows a rank at most half a percent less busy than the estimate does (SelectorPruning.LowerBoundsHold).
constexpr double kSimulatedMayBeLess = 0.95;

/// The time that one rank's Program needs its core, which also moves data through shared memory, and the network ports of its
/// node.
struct Demand {
  double core_us = 0;
  double out_us = 0;
  double in_us = 0;
};

/// The estimate for the ranks of one node, from their Programs.
class NodeEstimate {
 public:
  NodeEstimate(const Topology& topology, const CostModel& costs, const Collective& collective,
               const std::vector<Program>& programs)
      : topology_(topology), costs_(costs), collective_(collective), programs_(programs) {}

  [[nodiscard]] double busy_us() const {
    const Demand demand = together();
    return std::max({demand.core_us, demand.out_us, demand.in_us});
  }

  [[nodiscard]] double total_us() const {
    const Demand most = together();
    const bool wire_bound = std::max(most.out_us, most.in_us) > most.core_us;
    // A chain of hops that visits all ranks, as in a ring, takes their average time. A rank that only waits for the result,
    // for example one beyond a power of two, hardly counts.
    double chains_us = 0;
    double receives = 0;
    for (const Program& program : programs_) {
      const auto count = static_cast<double>(std::ranges::count_if(
          program.steps, [](const Step& step) { return step.op == StepOp::recv || step.op == StepOp::recv_reduce; }));
      chains_us += count * chain_us(program, wire_bound);
      receives += count;
    }
    return chains_us / std::max(receives, 1.0) + busy_us();
  }

 private:
  /// The ranks of a node share its wire; each has its own core.
  [[nodiscard]] Demand together() const {
    Demand most;
    for (const Program& program : programs_) {
      const Demand demand = demand_of(program);
      most.core_us = std::max(most.core_us, demand.core_us);
      most.out_us += demand.out_us;
      most.in_us += demand.in_us;
    }
    return most;
  }

  [[nodiscard]] std::size_t bytes_of(const ChunkLayout& layout, const Step& step) const {
    return layout.bytes(step.op == StepOp::send ? step.source : step.target).size_bytes;
  }

  [[nodiscard]] Demand demand_of(const Program& program) const {
    const ChunkLayout layout(collective_, topology_.ranks(), program.rank, program.message_chunks);
    std::set<int> senders;
    for (const Step& step : program.steps) {
      const bool receives = step.op == StepOp::recv || step.op == StepOp::recv_reduce;
      if (receives && topology_.link_class(program.rank, step.peer) == LinkClass::network) senders.insert(step.peer);
    }
    const int flows = static_cast<int>(senders.size());
    Demand demand;
    for (const Step& step : program.steps) {
      const std::size_t bytes = bytes_of(layout, step);
      if (step.op == StepOp::copy) demand.core_us += costs_.copy_us(program.rank, bytes);
      if (step.op == StepOp::reduce || step.op == StepOp::recv_reduce) demand.core_us += costs_.reduce_us(program.rank, bytes);
      // The rank's own operand, which the first receive of a fold reads.
      if (step.op == StepOp::recv_reduce && step.source.buffer != step.target.buffer)
        demand.core_us += costs_.copy_us(program.rank, bytes);
      if (step.peer < 0) continue;
      const double moved_us = costs_.port_us(program.rank, step.peer, bytes, flows);
      if (topology_.link_class(program.rank, step.peer) != LinkClass::network) {
        demand.core_us += moved_us;
      } else {
        (step.op == StepOp::send ? demand.out_us : demand.in_us) += moved_us;
      }
    }
    return demand;
  }

  /// Latency along the longest chain of hops, plus the time of one tile on each hop that does not use the busiest resource,
  /// wire or core (busy_us() counts the time on that resource in full).
  [[nodiscard]] double chain_us(const Program& program, bool wire_bound) const {
    const ChunkLayout layout(collective_, topology_.ranks(), program.rank, program.message_chunks);
    // When the first tile of each chunk's value is available: of the output, then of scratch.
    std::vector<double> value_us(std::size_t{program.message_chunks} + program.scratch_chunks, 0);
    const auto place = [&](const Slice& slice) {
      return value_us.begin() + slice.first_chunk + (slice.buffer == Buffer::scratch ? program.message_chunks : 0);
    };
    std::vector<double> sent_us(program.lanes, 0);  // when the latest send of a lane starts
    double longest_us = 0;
    for (const Step& step : program.steps) {
      double& sent = sent_us[step.lane];
      const bool made_here = step.op != StepOp::recv && step.source.buffer != Buffer::input;
      const double source_us = made_here ? *place(step.source) : 0;
      if (step.op == StepOp::send) sent = std::max(sent, source_us);
      if (step.op == StepOp::copy) std::fill_n(place(step.target), step.target.chunk_count, source_us);
      if (step.op == StepOp::send || step.peer < 0) continue;
      double hop_us = costs_.flight_us(program.rank, step.peer);
      if ((topology_.link_class(program.rank, step.peer) == LinkClass::network) != wire_bound) {
        hop_us += costs_.port_us(program.rank, step.peer, costs_.tile(bytes_of(layout, step)));
      }
      for (std::uint32_t k = 0; k < step.target.chunk_count; ++k) {
        double& value = place(step.target)[k];
        value = std::max(value, sent + hop_us);
        longest_us = std::max(longest_us, value);
      }
    }
    return longest_us;
  }

  const Topology& topology_;
  const CostModel& costs_;
  const Collective& collective_;
  const std::vector<Program>& programs_;
};

/// The time of the hops that no Program shows, each for a tile of half of the message.
double hidden_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  if (algorithm.hidden_hops == nullptr || collective.kind != CollectiveKind::all_reduce) return 0;
  const LinkCost& cost =
      topology.cost[static_cast<std::size_t>(topology.nodes() > 1 ? LinkClass::network : LinkClass::shared_memory)];
  const double bytes = static_cast<double>(std::min(CostModel::kTileBytes, collective.input_bytes() / 2));
  return algorithm.hidden_hops(topology) * (cost.latency_us + bytes * cost.us_per_byte);
}

/// The Programs of a sample of nodes whose ranks represent all.
class Sample {
 public:
  Sample(const Algorithm& algorithm, const Topology& topology, const Collective& collective) : collective_(collective) {
    auto nodes = ranks_of_nodes(topology);
    // Without a shared wire, a few ranks represent all.
    if (nodes.size() == 1 && nodes.front().size() > kMaxRanksOfOneNode) nodes.front().resize(kMaxRanksOfOneNode);
    const auto by_size = [](const auto& a, const auto& b) { return a.size() < b.size(); };
    const auto [smallest, largest] = std::ranges::minmax_element(nodes, by_size);
    // Besides the smallest and the largest node, some nodes with another role if the number of nodes is not a power of two.
    const auto at = [&](std::size_t node) { return static_cast<std::ptrdiff_t>(std::min(node, nodes.size() - 1)); };
    std::set<std::ptrdiff_t> chosen{smallest - nodes.begin(), largest - nodes.begin(), at(1), at(nodes.size() / 2)};
    if (has_root(collective.kind)) chosen.insert(topology.node_of_rank[static_cast<std::size_t>(collective.root)]);
    for (const std::ptrdiff_t node : chosen) {
      std::vector<Program>& programs = nodes_.emplace_back();
      for (const int rank : nodes[static_cast<std::size_t>(node)])
        programs.push_back(algorithm.build(topology, collective, rank));
    }
  }

  /// `topology`: that of the Programs, with any costs.
  [[nodiscard]] double most_us(const Topology& topology, double (NodeEstimate::*of_node)() const) const {
    const CostModel costs(topology);
    double most_us = 0;
    for (const std::vector<Program>& programs : nodes_)
      most_us = std::max(most_us, (NodeEstimate(topology, costs, collective_, programs).*of_node)());
    return most_us;
  }

 private:
  Collective collective_;
  std::vector<std::vector<Program>> nodes_;
};

/// Cost for rank 0 of pure acknowledgement packets. A message of a single packet causes one if its receiver does not answer
/// with a message of its own: in a ring it does not, in a pairwise exchange it does. Every larger message causes one. 4
/// nodes, all_gather of 256 bytes: 2.6 packets a call by recursive doubling, 3.4 by circulant, of 2 messages each; 2 nodes,
/// all_reduce: 12.6 us for 1 KiB, 20 us for 2 KiB.
double acknowledging_us(const Program& program, const Topology& topology, const Collective& collective) {
  constexpr std::size_t kPacketBytes = 1448;  // TCP's payload on Ethernet
  const ChunkLayout layout(collective, topology.ranks(), program.rank, program.message_chunks);
  std::map<int, int> unanswered;  // by peer: messages sent to it minus those received
  int packets = 0;
  for (const Step& step : program.steps) {
    if (step.peer < 0 || topology.link_class(program.rank, step.peer) != LinkClass::network) continue;
    const bool sends = step.op == StepOp::send;
    if (layout.bytes(sends ? step.source : step.target).size_bytes > kPacketBytes) {
      ++packets;
    } else {
      unanswered[step.peer] += sends ? 1 : -1;
    }
  }
  for (const auto& [peer, messages] : unanswered) packets += std::abs(messages);
  return packets * topology.cost[static_cast<std::size_t>(LinkClass::network)].overhead();
}

/// Differences between shares change the time little compared with the sum of the shares.
Collective with_equal_shares(const Collective& collective, int ranks) {
  Collective equal = collective;
  equal.counts = {};
  if (!collective.counts.empty()) equal.count = collective.count / static_cast<std::size_t>(ranks);
  return equal;
}

// Bytes that a token bucket was observed to let pass at once (probe.cc).
constexpr double kBurstBytes = 64 << 10;

/// If a token bucket shapes the links between nodes: messages after a pause pass sooner, and back-to-back calls wait for the
/// tokens of all their bytes. 4 nodes of 1 Gbit/s, 16 KiB by recursive halving: 209 us, 24 KiB a node at the rate of the
/// bucket; with a wire of that rate 310. None if no bucket was observed, or if the call sends more than it may hold.
struct Bursts {
  Topology topology;     // with the costs of short messages
  double tokens_us = 0;  // until the tokens of a call have accumulated
};

/// The predictions for one call. The Programs of the sample are built once, when a prediction needs them.
class Prediction {
 public:
  Prediction(const Algorithm& algorithm, const Topology& topology, const Collective& collective)
      : algorithm_(algorithm), topology_(topology), collective_(collective) {}

  [[nodiscard]] double estimate_us(const Topology& topology) {
    return sample().most_us(topology, &NodeEstimate::total_us) + hidden_us(algorithm_, topology, collective_);
  }
  [[nodiscard]] double busy_us(const Topology& topology) { return sample().most_us(topology, &NodeEstimate::busy_us); }

  /// Time of a call whose bytes all pass at the steady rate of its links.
  [[nodiscard]] double steady_us(const Topology& topology) {
    const Program first = algorithm_.build(topology, collective_, 0);
    const std::size_t steps = first.steps.size() * topology.node_of_rank.size();
    // A rooted collective is not symmetric, but mostly short: it is simulated up to a larger size, and so is a barrier.
    const bool symmetric = !has_root(collective_.kind) && collective_.kind != CollectiveKind::barrier;
    // In a tree, rank 0 does not represent which rank waits for which.
    const double more_us = symmetric ? acknowledging_us(first, topology, collective_) : 0;
    if (steps <= (symmetric ? kMaxSimulatedSteps : kMaxRootedSteps)) {
      const auto schedule = build_schedule(algorithm_, topology, collective_);
      const auto simulation = schedule.ok() ? simulate(*schedule) : Result<Simulation>(schedule.status());
      if (simulation.ok()) return more_us + simulation->total_us;
    }
    return more_us + estimate_us(topology);
  }

  [[nodiscard]] std::optional<Bursts> bursts() {
    const LinkCost& wire = topology_.cost[static_cast<std::size_t>(LinkClass::network)];
    if (wire.burst_us_per_byte < 0 || topology_.nodes() == 1) return {};
    // Some node sends at least one rank's share: checked before the Programs are built.
    if (static_cast<double>(collective_.input_bytes()) > kBurstBytes * topology_.ranks()) return {};
    Bursts bursts{topology_};
    for (LinkCost& cost : bursts.topology.cost) cost.overhead_us = 0;
    bursts.tokens_us = busy_us(bursts.topology);
    if (bursts.tokens_us > kBurstBytes * wire.us_per_byte) return {};
    bursts.topology.cost = topology_.cost;
    bursts.topology.cost[static_cast<std::size_t>(LinkClass::network)].us_per_byte = wire.burst_us_per_byte;
    return bursts;
  }

 private:
  [[nodiscard]] const Sample& sample() {
    if (!sample_) sample_.emplace(algorithm_, topology_, collective_);
    return *sample_;
  }

  const Algorithm& algorithm_;
  const Topology& topology_;
  const Collective& collective_;
  std::optional<Sample> sample_;
};

}  // namespace

double estimate_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  return Prediction(algorithm, topology, collective).estimate_us(topology);
}

double busy_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  return Prediction(algorithm, topology, collective).busy_us(topology);
}

double predict_us(const Algorithm& algorithm, const Topology& topology, const Collective& asked) {
  const Collective collective = with_equal_shares(asked, topology.ranks());
  Prediction prediction(algorithm, topology, collective);
  const auto bursts = prediction.bursts();
  if (!bursts) return prediction.steady_us(topology);
  return std::max(bursts->tokens_us, prediction.steady_us(bursts->topology));
}

double work_us(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  Prediction prediction(algorithm, topology, collective);
  const auto bursts = prediction.bursts();
  return prediction.busy_us(bursts ? bursts->topology : topology);
}

double least_us(const Algorithm& algorithm, const Topology& topology, const Collective& asked) {
  const Collective collective = with_equal_shares(asked, topology.ranks());
  Topology fast = topology;
  LinkCost& wire = fast.cost[static_cast<std::size_t>(LinkClass::network)];
  if (wire.burst_us_per_byte >= 0) wire.us_per_byte = std::min(wire.us_per_byte, wire.burst_us_per_byte);
  // A rank of the smallest node, which is in every sample.
  const auto nodes = ranks_of_nodes(topology);
  const int rank = std::ranges::min_element(nodes, {}, [](const auto& ranks) { return ranks.size(); })->front();
  const std::vector<Program> programs{algorithm.build(topology, collective, rank)};
  const CostModel costs(fast);
  return kSimulatedMayBeLess * NodeEstimate(fast, costs, collective, programs).busy_us();
}

PredictedTerms predict_terms(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  Topology free_bytes = topology;
  for (LinkCost& cost : free_bytes.cost) cost.us_per_byte = 0;
  Topology free_arithmetic = topology;
  free_arithmetic.reduce_us_per_byte = 0;
  Topology only_latency = free_bytes;
  only_latency.reduce_us_per_byte = 0;
  const double total_us = predict_us(algorithm, topology, collective);
  const auto saved_us = [&](const Topology& without) {
    return std::max(0.0, total_us - predict_us(algorithm, without, collective));
  };
  return {predict_us(algorithm, only_latency, collective), saved_us(free_bytes), saved_us(free_arithmetic)};
}

}  // namespace shoal
