// The kernels' parameters, as plain structs: filled by the host (src/cuda), read on the device and by the tests' fake device.
// Nothing of CUDA is named here.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/types.h>

namespace shoal::kernels {

/// Ranks of one node that a kernel reads from: NVLink boards have 8, and room for those of two.
inline constexpr int kMaxPeers = 16;
/// Buffers of one rank that its peers have mapped; number 0 is its staging memory.
inline constexpr std::size_t kMaxBuffers = 64;
/// A flag has a cache line pair to itself: two are fetched at once.
inline constexpr std::size_t kFlagBytes = 128;

/// Where a rank's data lies for its peers, written by that rank's stream before the flag that announces it and read by the
/// peers' streams after they have seen the flag: the flag orders it, so the fields need not be atomic.
struct Place {
  std::uint32_t buffer = 0;  ///< number of a mapped buffer of that rank
  std::uint32_t offset_low = 0;
  std::uint32_t offset_high = 0;
};

/// Something to read: an address, or a Place that is looked up on the device when the kernel runs.
struct Source {
  const std::byte* address = nullptr;       ///< used where `place` is null
  const Place* place = nullptr;             ///< of the rank that owns the memory
  const std::byte* const* bases = nullptr;  ///< kMaxBuffers addresses: that rank's buffers as mapped here
  std::size_t offset_bytes = 0;             ///< added to either
};

/// targets[j][i] = sources[0][i] op sources[1][i] op ..., folded in their order, for i < count; see Device::reduce.
struct FoldParameters {
  Source sources[kMaxPeers];
  int source_count = 0;
  std::byte* targets[2] = {};  ///< the second may be null; each may be a source, but overlap none otherwise
  std::size_t count = 0;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 0;  ///< not 0: an average's last fold, Device::reduce_average
  int max_blocks = 1;
  const std::uint32_t* cancelled = nullptr;  ///< not null: nothing is read or written where this word is not 0
};

/// Runs of bytes to copy, which do not overlap.
struct CopyParameters {
  struct Segment {
    Source source;
    std::byte* target = nullptr;
    std::size_t bytes = 0;
  };
  Segment segments[kMaxPeers];
  int segment_count = 0;
  int max_blocks = 1;
  const std::uint32_t* cancelled = nullptr;  ///< as above
};

/// An all_reduce in one kernel, for ranks whose kernels are known to be resident at once: each waits for the others inside.
///
/// `input` is copied to `staging[rank]`; the peers' inputs are read from staging[r]: memory of rank r that is mapped here.
/// Flags lie in memory of the rank that waits for them: flags[r] is the table of rank r, and the word of (writer, block) is
/// written by that writer's block only. Values are epochs that only grow, so nothing is ever reset.
struct FusedParameters {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* staging[kMaxPeers] = {};    ///< what each rank gives, then (two_shot) what it has folded
  std::byte* results[kMaxPeers] = {};    ///< two_shot: each rank's folded share; unused by one_shot
  std::uint32_t* flags[kMaxPeers] = {};  ///< kMaxPeers * kMaxFusedBlocks words each
  int rank = 0;
  int ranks = 1;
  std::size_t count = 0;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int divisor = 0;
  bool two_shot = false;
  int blocks = 1;                      ///< the same on all ranks, at most kMaxFusedBlocks
  std::uint32_t epoch = 0;             ///< of this call; it uses epoch + 1 and, in two shots, epoch + 2
  std::uint32_t* cancelled = nullptr;  ///< when this word becomes 1, kernels that wait stop
};
inline constexpr int kMaxFusedBlocks = 32;

/// The divisor argument of a fold: the number of ranks for `avg`, else 0.
constexpr int divisor_of(ReduceOp op, int ranks) noexcept { return op == ReduceOp::avg ? ranks : 0; }

}  // namespace shoal::kernels
