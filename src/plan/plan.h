// Plan: a Program bound to byte ranges and links, made once for a call signature and used again for every such call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/diagnosis/signature.h"
#include "src/peer_memory/moves.h"
#include "src/peer_memory/part.h"
#include "src/plan/call_buffers.h"
#include "src/schedule/program.h"

namespace shoal {

namespace internal {
class CallMeter;
class Operation;
}  // namespace internal

/// What distinguishes one Plan from another on a communicator.
struct PlanKey {
  Collective collective;
  bool in_place = false;
  bool barrier = false;  ///< an all_reduce of one byte that only serves to wait for each other
  /// An average of integers, of type `integers`: `collective` is the sum that it is made of (communicator/integer_average.h).
  /// Its signature is that of the average.
  bool averages = false;
  DataType integers = DataType::float32;
  const char* algorithm = nullptr;  ///< forced by the call; compared as text

  /// How many elements of `collective` stand for one number of the caller's.
  [[nodiscard]] std::size_t parts_of_number() const noexcept {
    return averages && size_of(integers) == size_of(DataType::int64) ? 2 : 1;
  }
  bool operator==(const PlanKey& other) const noexcept;
  [[nodiscard]] std::uint64_t hash() const noexcept;
};

/// Bytes in one of the three buffers of a call.
struct PlanSlice {
  Buffer buffer = Buffer::output;
  std::size_t offset_bytes = 0;
};

/// Another instruction (an earlier one where the two conflict) that must be far enough before this one may continue. Both work
/// from their first byte to their last, so progress is one number: the dependent may touch its byte x only when
/// `done[instruction] > x + shift_bytes`, or when that instruction is finished.
struct PlanDependency {
  std::uint32_t instruction = 0;
  std::int64_t shift_bytes = 0;
};

/// One end of a message: the link's index in the communicator and in Plan::links, and which message of the call on this link it
/// is.
struct PlanEdge {
  std::uint32_t link = 0;
  std::uint32_t plan_link = 0;
  std::uint32_t edge = 0;
};

/// A Step, or several recv_reduce Steps folded into one n-way pass.
struct Instruction {
  StepOp op = StepOp::copy;
  bool may_lend = false;  ///< send: may be zero-copy; what the peer's release of its tiles waits for does not wait for its end
  bool average = false;   ///< this fold makes a final value of an `avg`: divide by the number of ranks
  std::size_t size_bytes = 0;
  std::size_t tile_bytes = 0;          ///< it moves in tiles of this size; the last one may be smaller
  PlanSlice source;                    ///< send, copy, reduce, recv_reduce (own operand)
  PlanSlice target;                    ///< recv, copy, reduce, recv_reduce
  std::uint32_t own_position = 0;      ///< recv_reduce: index of the own operand in the fold, which is in ascending rank order
  std::uint32_t first_edge = 0;        ///< into Plan::edges
  std::uint32_t edge_count = 0;        ///< 1 for send and recv; n - 1 for an n-way recv_reduce
  std::uint32_t first_dependency = 0;  ///< into Plan::dependencies
  std::uint32_t dependency_count = 0;
};

/// What the instructions do on one link, in the order of its tiles.
///
/// The signature goes both ways, except in a call with a root whose data goes one way only: then the receiver compares, and
/// the sender waits for no rank.
struct PlanLink {
  std::uint32_t link = 0;
  std::uint32_t tiles = 1;              ///< that this rank sends: its signature, then payloads
  std::vector<std::uint32_t> sends;     ///< instruction indices
  std::vector<std::uint32_t> receives;  ///< instruction indices (recv and n-way recv_reduce)
  CallSignature signature = {};         ///< that this rank sends to the peer
  CallSignature expected = {};          ///< that the peer must send
  bool speaks = true;                   ///< this rank sends its signature
  bool hears = true;                    ///< this rank waits for the peer's signature
};

/// Immutable after make_plan, but for the pool. Thread rule: may be read from any thread.
struct Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan();  // operation.cc: the pool's Operations go with it

  PlanKey key;
  std::string algorithm;
  std::string forced_algorithm;     ///< storage behind key.algorithm
  std::vector<std::size_t> counts;  ///< storage behind key.collective.counts
  double predicted_us = 0;
  CallSignature signature;
  std::uint64_t signature_hash = 0;  ///< the same on every rank
  CallBuffers buffers;
  std::size_t scratch_bytes = 0;
  int ranks = 1;
  std::vector<Instruction> instructions;
  std::vector<PlanEdge> edges;
  std::vector<PlanDependency> dependencies;
  std::vector<PlanLink> links;                               ///< links that this call uses
  std::vector<std::uint32_t> local_steps;                    ///< copy and reduce instructions
  internal::CallMeter* meter = nullptr;                      ///< counts the calls; null where no statistics are kept
  bool one_shot_window = false;                              ///< may run fused over windows (runtime/peer_memory_calls.h)
  PeerMemoryPart peer_memory_part;                           ///< then: this rank's part
  bool zero_copy_reduce = false;                             ///< may run fused where all buffers lie in shared memory
  bool zero_copy_move = false;                               ///< may run fused where all ranks reach all buffers
  bool private_memory = false;                               ///< the two above also with buffers in private memory
  std::vector<PeerMemoryMove> moves;                         ///< then: this rank's part
  std::array<std::atomic<internal::Operation*>, 32> pool{};  ///< Operations for reuse
};

/// What make_plan needs to know of the communicator.
struct PlanContext {
  const Topology* topology = nullptr;
  int rank = 0;
  std::span<const int> link_of_rank;   ///< index of the link to each rank; -1 for the own rank
  std::size_t max_tile_bytes = 0;      ///< what every link of the communicator takes at once
  std::size_t network_tile_bytes = 0;  ///< of a large message: what every link over the network takes at once
  OneShotRoom window_room;             ///< in the shared windows; none where not all ranks share one
  bool costly_tiles = false;           ///< some link's tiles cost system calls; the same for all ranks
};

/// Compiles `program` for `key`. Errors: internal, where the Program breaks the rules of program.h.
Result<std::unique_ptr<Plan>> make_plan(const PlanContext& context, const PlanKey& key, const Program& program);

}  // namespace shoal
