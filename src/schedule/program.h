// The plain values that algorithms produce: Collective, Slice, Step, Program, Schedule. No I/O, no threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <shoal/types.h>

#include "src/topology/topology.h"

namespace shoal {

/// What is asked for.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;  ///< elements of the message; of one share where it is dealt in shares; barrier: 0
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  /// Where shares differ: elements of each rank's share, and `count` is their sum. all_to_all: what this rank sends to each
  /// rank, then what it receives from each, and `count` is the sum of the former. Empty: all shares are of `count`. Not owned.
  std::span<const std::size_t> counts = {};

  friend bool operator==(const Collective& a, const Collective& b) noexcept {
    return a.count == b.count && a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.counts.size() == b.counts.size() && (a.counts.empty() || std::ranges::equal(a.counts, b.counts));
  }
  /// Bytes of `count` elements.
  [[nodiscard]] std::size_t input_bytes() const noexcept { return count * size_of(type); }
  /// Bytes of the whole message among `ranks` ranks: all shares. all_to_all: of what one rank sends.
  [[nodiscard]] std::size_t message_bytes(int ranks) const noexcept {
    const bool equal_shares = deals_in_shares(kind) && counts.empty();
    return input_bytes() * (equal_shares ? static_cast<std::size_t>(ranks) : 1);
  }
};

/// The buffers that a Step may name. In a broadcast `input` is unused: the root's data is its `output`.
/// In place, `input` and `output` share memory: Programs must be right in both cases (the Verifier checks both).
enum class Buffer : std::uint8_t { input, output, scratch };

/// A run of chunks in one buffer. See ChunkLayout (layout.h) for the bytes that a chunk covers.
struct Slice {
  Buffer buffer = Buffer::output;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
  /// Scratch has room for any message chunk; this one says how large what lies in the first is, the following ones how large
  /// the rest is. 0 in other buffers.
  std::uint32_t holds = 0;

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
  /// A fold after which the target holds every rank's contribution: here an average is divided, once. Set on the last of the
  /// steps that make one n-way reduction.
  bool completes = false;

  bool operator==(const Step&) const = default;
};

/// What one rank does.
///
/// Order: (1) two steps of one *lane* whose slices conflict (one writes what the other reads or writes) happen in program
/// order, tile by tile; steps that do not conflict may overlap. Steps of different lanes are not ordered and must not conflict.
/// (2) The k-th send to a peer meets the peer's k-th recv or recv_reduce from this rank, whatever the lanes; tiles of one link
/// travel in that order. (3) A send is done when its bytes have left the source; a link holds at least one tile in flight.
///
/// Consecutive recv_reduce steps of a lane with the same target, from peers over links of one class, are one n-way reduction:
/// an engine must fold all operands, its own among them, in ascending rank order and with one rounding, so that every rank gets
/// the same bits; it may do so in one pass.
struct Program {
  int rank = 0;
  std::string algorithm;             ///< "ring", "hierarchical(direct)", ...
  std::uint32_t message_chunks = 1;  ///< that the message is cut into; a multiple of the ranks where it is dealt in shares
  std::uint32_t scratch_chunks = 0;  ///< that the steps name, each with room for the largest message chunk
  std::uint32_t lanes = 1;
  std::vector<Step> steps;
  /// N-way reductions may also take from the own node and over the network at once, the same on all ranks. Then all messages of
  /// the call travel in tiles of one size; else those over the network may be larger. For what several ranks fold by
  /// themselves: two folds, one for each class, would be in another order on each. In place, ranks would wait for each other
  /// too: a large tile is folded when all of it has been sent on, and what goes that way in small ones fills the link of a
  /// neighbour that waits for the same.
  bool folds_across_links = false;
};

/// The algorithm whose all_reduce on one node an Engine may run as one fold in place where all buffers lie in shared memory: it
/// gives every shard to one rank, which folds it in rank order, as that fold does, so that the bits do not depend on the
/// buffers.
inline constexpr std::string_view kFoldsInPlace = "direct";

/// Every rank's Program for one call.
struct Schedule {
  Topology topology;
  Collective collective;
  std::vector<Program> programs;  ///< index = rank
  /// all_to_all with counts: those of each rank; else empty.
  std::vector<std::vector<std::size_t>> counts_of_rank = {};

  /// What `rank` asks for. Valid as long as this Schedule.
  [[nodiscard]] Collective collective_of(int rank) const noexcept {
    Collective own = collective;
    if (!counts_of_rank.empty()) own.counts = counts_of_rank[static_cast<std::size_t>(rank)];
    return own;
  }
};

/// "all_reduce float32 x 1024 sum".
std::string to_string(const Collective& collective);

}  // namespace shoal
