// all_reduce in one kernel, phase by phase, for one thread of one block. all_reduce_fused.cu runs the phases on a device,
// host_run.h on the host.
//
// Implements the Programs of `one_shot` (every rank reads everything) and `direct`, also called two_shot (every rank folds its
// share, then reads the shares of its peers), on one node.
//
// A block works on a run of elements that depends on the block's number and the count alone, not on any rank's addresses. So
// block b waits for the blocks b of the other ranks only, and needs no barrier of the whole grid.
#pragma once

#include "kernels/fold.h"

namespace shoal::kernels {

/// The elements that block `block` handles: of those that `rank` folds in two shots; of all elements in one shot.
SHOAL_HOST_DEVICE Share fused_run(const FusedParameters& p, std::size_t element_bytes, int rank, int block) {
  const Share share = p.two_shot ? share_of(p.count, element_bytes, rank, p.ranks) : Share{0, p.count};
  const Share run = share_of(share.count, element_bytes, block, p.blocks);
  return {share.begin + run.begin, run.count};
}

SHOAL_HOST_DEVICE std::size_t flag_index(int writer, int block) {
  return static_cast<std::size_t>(writer) * kMaxFusedBlocks + static_cast<std::size_t>(block);
}

/// Phase 1: copies this block's part of the input to where the peers read it.
SHOAL_HOST_DEVICE void fused_give(const FusedParameters& p, std::size_t element_bytes, int block, std::size_t thread,
                                  std::size_t threads) {
  for (int r = 0; r < (p.two_shot ? p.ranks : 1); ++r) {
    const Share run = fused_run(p, element_bytes, r, block);
    const std::size_t offset = run.begin * element_bytes;
    copy_thread(p.staging[p.rank] + offset, p.input + offset, run.count * element_bytes, thread, threads);
  }
}

/// Phase 2, after all have given: what to fold. Filled in place, once a block.
SHOAL_HOST_DEVICE void set_fused_fold(Fold& fold, const FusedParameters& p, std::size_t element_bytes, int block) {
  const Share run = fused_run(p, element_bytes, p.rank, block);
  const std::size_t offset = run.begin * element_bytes;
  for (int k = 0; k < p.ranks; ++k) fold.sources[k] = p.staging[k] + offset;
  fold.source_count = p.ranks;
  fold.targets[0] = p.output + offset;
  fold.targets[1] = p.two_shot ? p.results[p.rank] + offset : nullptr;
  fold.count = run.count;
  fold.divisor = p.divisor;
}

/// Phase 3 of two shots, after all have folded: takes the peers' shares.
SHOAL_HOST_DEVICE void fused_take(const FusedParameters& p, std::size_t element_bytes, int block, std::size_t thread,
                                  std::size_t threads) {
  for (int i = 1; i < p.ranks; ++i) {
    const int r = (p.rank + i) % p.ranks;  // not all from the same rank at once
    const Share run = fused_run(p, element_bytes, r, block);
    const std::size_t offset = run.begin * element_bytes;
    copy_thread(p.output + offset, p.results[r] + offset, run.count * element_bytes, thread, threads);
  }
}

}  // namespace shoal::kernels
