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

/// What the caller requests.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t count = 0;  ///< elements of the message; of one share if it is dealt in shares; barrier: 0
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  /// If shares differ: elements of each rank's share, and `count` is their sum. all_to_all: what this rank sends to each
  /// rank, then what it receives from each, and `count` is the sum of the former. Empty: all shares have `count` elements.
  /// Not owned.
  std::span<const std::size_t> counts = {};

  friend bool operator==(const Collective& a, const Collective& b) noexcept {
    return a.count == b.count && a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.counts.size() == b.counts.size() && (a.counts.empty() || std::ranges::equal(a.counts, b.counts));
  }
  /// Bytes of `count` elements.
  [[nodiscard]] std::size_t input_bytes() const noexcept { return count * size_of(type); }
  /// Bytes of the whole message among `ranks` ranks, that is of all shares. all_to_all: of what one rank sends.
  [[nodiscard]] std::size_t message_bytes(int ranks) const noexcept {
    const bool equal_shares = deals_in_shares(kind) && counts.empty();
    return input_bytes() * (equal_shares ? static_cast<std::size_t>(ranks) : 1);
  }
};

/// The buffers that a Step may name. In a broadcast `input` is unused: the root's data is its `output`. In place, `input` and
/// `output` share memory: Programs must be correct in both cases (the Verifier checks both).
enum class Buffer : std::uint8_t { input, output, scratch };

/// A run of chunks in one buffer. See ChunkLayout (layout.h) for the bytes that a chunk covers.
struct Slice {
  Buffer buffer = Buffer::output;
  std::uint32_t first_chunk = 0;
  std::uint32_t chunk_count = 0;
  /// Scratch has room for any message chunk. This is the message chunk whose size the first chunk of the slice has; the
  /// following ones have the sizes of the following message chunks. 0 in other buffers.
  std::uint32_t holds = 0;

  bool operator==(const Slice&) const = default;
};

/// The five operations. Frozen: a sixth requires an algorithm that cannot be written without it.
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
  /// The target of this fold then holds the contribution of every rank: an average is divided here, once. Set on the last of
  /// the steps that form one n-way reduction.
  bool completes = false;

  bool operator==(const Step&) const = default;
};

/// The steps of one rank.
///
/// Order: (1) Two steps of one *lane* whose slices conflict (one writes what the other reads or writes) happen in program
/// order, tile by tile; steps that do not conflict may overlap. Steps of different lanes are not ordered and must not
/// conflict. (2) The k-th send to a peer matches the peer's k-th recv or recv_reduce from this rank, in whatever lanes; tiles
/// of one link travel in that order. (3) A send is done when its bytes have left the source; a link holds at least one tile
/// in flight.
///
/// Consecutive recv_reduce steps of a lane with the same target, from peers over links of one class, are one n-way reduction:
/// an engine must fold all operands, its own included, in ascending rank order and with one rounding, so that every rank gets
/// the same bits. It may fold them in one pass.
struct Program {
  int rank = 0;
  std::string algorithm;             ///< "ring", "hierarchical(direct)", ...
  std::uint32_t message_chunks = 1;  ///< that the message is cut into; a multiple of the ranks if it is dealt in shares
  std::uint32_t scratch_chunks = 0;  ///< that the steps name, each with room for the largest message chunk
  std::uint32_t lanes = 1;
  std::vector<Step> steps;
  /// N-way reductions may take operands over shared memory and over the network at once; equal on all ranks. Then all
  /// messages of the call travel in tiles of one size; otherwise those over the network may be larger. For calls in which
  /// several ranks fold the same operands: two folds, one for each link class, would have another order on each rank. In
  /// place, ranks would also wait for each other: a large tile is folded only when all of it has been forwarded, and its
  /// small tiles fill the link of a neighbour that waits in the same way.
  bool folds_across_links = false;
};

/// The algorithm whose all_reduce on one node an engine may run as one fold in place if all buffers lie in shared memory. It
/// assigns every shard to one rank, which folds it in rank order, as that fold does, so the bits do not depend on the
/// buffers.
inline constexpr std::string_view kFoldsInPlace = "direct";

/// The Programs of all ranks for one call.
struct Schedule {
  Topology topology;
  Collective collective;
  std::vector<Program> programs;  ///< index = rank
  /// all_to_all with counts: the counts of each rank; else empty.
  std::vector<std::vector<std::size_t>> counts_of_rank = {};

  /// The call of `rank`. Valid as long as this Schedule.
  [[nodiscard]] Collective collective_of(int rank) const noexcept {
    Collective own = collective;
    if (!counts_of_rank.empty()) own.counts = counts_of_rank[static_cast<std::size_t>(rank)];
    return own;
  }
};

/// "all_reduce float32 x 1024 sum".
std::string to_string(const Collective& collective);

}  // namespace shoal
