// The plain values that algorithms produce: Collective, Slice, Step, Program, Schedule. No I/O, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <shoal/types.h>

#include "src/topology/topology.h"

namespace shoal {

/// What is asked for.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;  ///< elements of the input (broadcast: of the buffer); barrier: 0
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;

  bool operator==(const Collective&) const = default;
  [[nodiscard]] std::size_t input_bytes() const noexcept { return count * size_of(type); }
};

/// The buffers that a Step may name. In a broadcast `input` is unused: the root's data is its `output`.
/// In place, `input` and `output` are the same memory: Programs must be right in both cases (the Verifier checks both).
enum class Buffer : std::uint8_t { input, output, scratch };

/// A run of chunks in one buffer. See ChunkLayout (layout.h) for the bytes that a chunk covers.
struct Slice {
  Buffer buffer = Buffer::output;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;

  bool operator==(const Slice&) const = default;
};

/// The five operations. Frozen: a sixth needs an algorithm that cannot be written without it.
enum class StepOp : std::uint8_t {
  send,         ///< source goes to peer
  recv,         ///< target = what peer sent
  recv_reduce,  ///< target = source (op) what peer sent; source may be target
  copy,         ///< target = source
  reduce,       ///< target = target (op) source
};

/// One step of one rank.
struct Step {
  StepOp op = StepOp::copy;
  std::int32_t peer = -1;  ///< rank at the other end; -1 for copy and reduce
  std::uint32_t lane = 0;  ///< independent strand that the step belongs to
  Slice source;            ///< unused by recv
  Slice target;            ///< unused by send

  bool operator==(const Step&) const = default;
};

/// What one rank does.
///
/// Order: (1) two steps of one *lane* whose slices conflict (one writes what the other reads or writes) happen in program
/// order, tile by tile; steps that do not conflict may overlap. Steps of different lanes are not ordered and must not conflict.
/// (2) The k-th send to a peer meets the peer's k-th recv or recv_reduce from this rank, whatever the lanes; tiles of one link
/// travel in that order. (3) A send is done when its bytes have left the source; a link holds at least one tile in flight.
///
/// Consecutive recv_reduce steps of a lane with the same target are one n-way reduction: an engine must fold all operands, its
/// own among them, in ascending rank order and with one rounding, so that every rank gets the same bits; it may do so in one
/// pass.
struct Program {
  int rank = 0;
  std::string algorithm;             ///< "ring", "hierarchical(direct)", ...
  std::uint32_t message_chunks = 1;  ///< chunks that the whole message (the larger of input and output) is cut into
  std::uint32_t scratch_chunks =
      0;  ///< chunks of scratch that the steps name; chunk i of scratch has the size of the largest chunk
  std::uint32_t lanes = 1;
  std::vector<Step> steps;
};

/// Every rank's Program for one call.
struct Schedule {
  Topology topology;
  Collective collective;
  std::vector<Program> programs;  ///< index = rank
};

/// "all_reduce float32 x 1024 sum".
std::string to_string(const Collective& collective);

}  // namespace shoal
