// bruck: all_to_all in ceil(log2 p) messages per rank. A block for the rank at distance d travels along the binary digits of
// d: in the round of bit k, every rank sends all blocks whose remaining distance contains that bit to the rank 2^k after it.
// Meant for small blocks: each is sent up to log2 p times. If p is a power of two, d is the exclusive or of the two ranks,
// and every round exchanges between pairs (a hypercube's dimensions: Johnsson and Ho, IEEE ToC 1989), so the reply
// acknowledges the message.
//
// The blocks of one round lie in as many places as there are blocks, so they are packed first: one message and some copies
// cost less than that many messages. Scratch: p / 2 blocks to pack into, and as much for what each round receives.

#include <bit>
#include <utility>
#include <vector>

#include "src/algorithms/registry.h"

namespace shoal {
namespace {

Status supports(const Topology&, const Collective& collective) {
  if (collective.kind == CollectiveKind::all_to_all && !collective.counts.empty()) {
    return {StatusCode::unsupported,
            "does not serve all_to_all with counts: a rank does not know the sizes of the blocks that it forwards"};
  }
  return serves_only(collective.kind, {CollectiveKind::all_to_all});
}

Program build(const RanksByNode& nodes, const Collective&, int rank) {
  const auto ranks = static_cast<std::uint32_t>(nodes.ranks());
  const auto me = static_cast<std::uint32_t>(rank);
  Program program;
  program.rank = rank;
  program.algorithm = "bruck";
  program.message_chunks = ranks;
  const bool pairs = std::has_single_bit(ranks);
  const auto after = [&](std::uint32_t distance) { return pairs ? me ^ distance : (me + distance) % ranks; };
  const auto before = [&](std::uint32_t distance) { return pairs ? me ^ distance : (me + ranks - distance) % ranks; };
  const auto copy = [&](const Slice& source, const Slice& target) {
    program.steps.push_back({StepOp::copy, -1, 0, source, target});
  };
  // Where each block lies, by the distance that it still has to travel or, once received, has travelled.
  std::vector<Slice> blocks;
  for (std::uint32_t distance = 0; distance < ranks; ++distance) {
    blocks.push_back({Buffer::input, after(distance), 1});
  }
  const auto scratch = [](std::uint32_t place, std::uint32_t count) { return Slice{Buffer::scratch, place, count}; };
  std::uint32_t received = ranks / 2;  // scratch in front of it is for packing
  for (std::uint32_t bit = 1; bit < ranks; bit *= 2) {
    std::uint32_t count = 0;
    for (std::uint32_t distance = bit; distance < ranks; ++distance) {
      if ((distance & bit) == 0) continue;
      copy(std::exchange(blocks[distance], scratch(received + count, 1)), scratch(count, 1));
      ++count;
    }
    program.steps.push_back({StepOp::send, static_cast<int>(after(bit)), 0, scratch(0, count), {}});
    program.steps.push_back({StepOp::recv, static_cast<int>(before(bit)), 0, {}, scratch(received, count)});
    received += count;
  }
  program.scratch_chunks = ranks > 1 ? received : 0;
  for (std::uint32_t distance = 0; distance < ranks; ++distance) {
    copy(blocks[distance], {Buffer::output, before(distance), 1});
  }
  return program;
}

}  // namespace

Algorithm bruck_algorithm() {
  return {"bruck", "ceil(log2 p) rounds of packed blocks, for small ones (Bruck et al., IEEE TPDS 1997)", supports, build};
}

}  // namespace shoal
