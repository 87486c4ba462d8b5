#include "src/algorithms/builder.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace shoal {

ProgramBuilder::ProgramBuilder(const Topology& topology, const Collective& collective, int rank, std::uint32_t message_chunks,
                               std::uint32_t lanes)
    : in_output_(message_chunks, false) {
  program_.rank = rank;
  program_.message_chunks = message_chunks;
  program_.lanes = lanes;
  if (collective.kind == CollectiveKind::all_gather) {
    first_input_chunk_ = static_cast<std::uint32_t>(rank) * (message_chunks / static_cast<std::uint32_t>(topology.ranks()));
  }
  // A broadcast works in one buffer, and a barrier has no data: its steps all name the output.
  if (collective.kind == CollectiveKind::broadcast || collective.kind == CollectiveKind::barrier) {
    in_output_.assign(message_chunks, true);
  }
}

void ProgramBuilder::send(int peer, const Shard& shard) {
  program_.steps.push_back({StepOp::send, peer, shard.lane, value(shard), {}});
}

void ProgramBuilder::recv(int peer, const Shard& shard) {
  program_.steps.push_back({StepOp::recv, peer, shard.lane, {}, write(shard)});
}

void ProgramBuilder::recv_reduce(int peer, const Shard& shard) {
  const Slice source = value(shard);
  program_.steps.push_back({StepOp::recv_reduce, peer, shard.lane, source, write(shard)});
}

void ProgramBuilder::copy_to_output(const Shard& shard) {
  const Slice source = value(shard);
  if (source.buffer == Buffer::input) program_.steps.push_back({StepOp::copy, -1, shard.lane, source, write(shard)});
}

Program ProgramBuilder::finish(std::string algorithm) && {
  program_.algorithm = std::move(algorithm);
  return std::move(program_);
}

Slice ProgramBuilder::value(const Shard& shard) const {
  const auto begin = in_output_.begin() + shard.first;
  const bool in_output = *begin;
  assert(std::all_of(begin, begin + shard.count, [&](bool chunk) { return chunk == in_output; }));
  if (in_output) return {Buffer::output, shard.first, shard.count};
  return {Buffer::input, shard.first - first_input_chunk_, shard.count};
}

Slice ProgramBuilder::write(const Shard& shard) {
  std::fill_n(in_output_.begin() + shard.first, shard.count, true);
  return {Buffer::output, shard.first, shard.count};
}

}  // namespace shoal
