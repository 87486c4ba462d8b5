#include "src/selector/node_estimate.h"

#include <utility>

#include "src/schedule/layout.h"

namespace shoal {
namespace {

bool is_receive(const Step& step) { return step.op == StepOp::recv || step.op == StepOp::recv_reduce; }

}  // namespace

SizedProgram::SizedProgram(Program of_rank, const RanksByNode& nodes, const Collective& collective)
    : program(std::move(of_rank)) {
  const ChunkLayout layout(collective, nodes.ranks(), program.rank, program.message_chunks);
  const std::size_t node = nodes.node_of(program.rank);
  std::vector<bool> sends_here(nodes.in_order().size());
  bytes.reserve(program.steps.size());
  for (const Step& step : program.steps) {
    bytes.push_back(layout.size_bytes(step.op == StepOp::send ? step.source : step.target));
    if (!is_receive(step)) continue;
    ++receives;
    if (nodes.node_of(step.peer) == node || sends_here[static_cast<std::size_t>(step.peer)]) continue;
    sends_here[static_cast<std::size_t>(step.peer)] = true;
    ++flows;
  }
}

Demand demand_of(const SizedProgram& rank, const CostModel& costs) {
  const Program& program = rank.program;
  Demand demand;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    const std::size_t bytes = rank.bytes[i];
    if (step.op == StepOp::copy) demand.core_us += costs.copy_us(program.rank, bytes);
    if (step.op == StepOp::reduce || step.op == StepOp::recv_reduce) demand.core_us += costs.reduce_us(program.rank, bytes);
    // The rank's own operand, which the first receive of a fold reads.
    if (step.op == StepOp::recv_reduce && step.source.buffer != step.target.buffer)
      demand.core_us += costs.copy_us(program.rank, bytes);
    if (step.peer < 0) continue;
    const double moved_us = costs.port_us(program.rank, step.peer, bytes, rank.flows);
    if (!costs.is_wire(program.rank, step.peer)) {
      demand.core_us += moved_us;
    } else {
      (step.op == StepOp::send ? demand.out_us : demand.in_us) += moved_us;
    }
  }
  return demand;
}

namespace {

/// Latency along the longest chain of hops, plus the time of one tile on each hop that does not use the busiest resource,
/// wire or core (the busy time counts the time on that resource in full).
double chain_us(const SizedProgram& rank, const CostModel& costs, bool wire_bound) {
  const Program& program = rank.program;
  // When the first tile of each chunk's value is available: of the output, then of scratch.
  std::vector<double> value_us(std::size_t{program.message_chunks} + program.scratch_chunks, 0);
  const auto place = [&](const Slice& slice) {
    return value_us.begin() + slice.first_chunk + (slice.buffer == Buffer::scratch ? program.message_chunks : 0);
  };
  std::vector<double> sent_us(program.lanes, 0);  // when the latest send of a lane starts
  double longest_us = 0;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    double& sent = sent_us[step.lane];
    const bool made_here = step.op != StepOp::recv && step.source.buffer != Buffer::input;
    const double source_us = made_here ? *place(step.source) : 0;
    if (step.op == StepOp::send) sent = std::max(sent, source_us);
    if (step.op == StepOp::copy) std::fill_n(place(step.target), step.target.chunk_count, source_us);
    if (step.op == StepOp::send || step.peer < 0) continue;
    double hop_us = costs.flight_us(program.rank, step.peer);
    if (costs.is_wire(program.rank, step.peer) != wire_bound)
      hop_us += costs.port_us(program.rank, step.peer, costs.tile(rank.bytes[i]));
    const double arrived_us = sent + hop_us;
    const auto first = place(step.target);
    for (std::uint32_t k = 0; k < step.target.chunk_count; ++k) {
      first[k] = std::max(first[k], arrived_us);
      longest_us = std::max(longest_us, first[k]);
    }
  }
  return longest_us;
}

}  // namespace

double node_us(std::span<const EqualRanks> node, const Demand& demand, const CostModel& costs) {
  const bool wire_bound = std::max(demand.out_us, demand.in_us) > demand.core_us;
  // A chain of hops that visits all ranks, as in a ring, takes their average time. A rank that only waits for the result, for
  // example one beyond a power of two, hardly counts.
  double chains_us = 0;
  double receives = 0;
  for (const EqualRanks& equal : node) {
    const double count = static_cast<double>(equal.program->receives) * equal.ranks;
    chains_us += count * chain_us(*equal.program, costs, wire_bound);
    receives += count;
  }
  return chains_us / std::max(receives, 1.0) + demand.busy_us();
}

}  // namespace shoal
