// A piece in the memory of the ranks of a node. Each function enqueues on the caller's stream.
//
// Why no rank overwrites data that a peer still reads: a rank's flag says how many ticks its stream has passed, each behind
// the kernels before it. A slot is reused two pieces later at the earliest (slot_count()), and in between the stream has
// waited for a tick that every rank announces only after it has read the slot.
#include <algorithm>
#include <array>

#include "kernels/partition.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

/// Up to this size every rank reads everything: it saves a round of flags. Not measured yet.
constexpr std::size_t kOneShotBytes = std::size_t{128} << 10;
constexpr std::size_t kFusedFlagsBytes = sizeof(std::uint32_t) * kernels::kMaxPeers * kernels::kMaxFusedBlocks;

}  // namespace

std::size_t DeviceGroup::input_offset(std::size_t slot) const noexcept { return kFusedFlagsBytes + slot * slot_bytes_; }
std::size_t DeviceGroup::result_offset(std::size_t slot) const noexcept {
  return kFusedFlagsBytes + (slot_count() + slot) * slot_bytes_;
}

/// Depends on the size of the message only: the same on all ranks, and for all pieces of it.
bool DeviceGroup::one_shot(const Enqueuing& e) const noexcept {
  return e.what.count * e.element_bytes <= kOneShotBytes || node_size_ == 1;
}

kernels::Source DeviceGroup::given_by(int rank, const Piece& piece, std::size_t offset_bytes) const {
  return {nullptr, board_->place(rank, piece.slot), words_->bases[rank], offset_bytes};
}

Status DeviceGroup::Copies::add(const kernels::Source& source, std::byte* target, std::size_t bytes) {
  if (bytes == 0) return {};
  parameters_.segments[parameters_.segment_count++] = {source, target, bytes};
  return parameters_.segment_count == kernels::kMaxPeers ? flush() : Status();
}

Status DeviceGroup::Copies::flush() {
  if (parameters_.segment_count == 0) return {};
  parameters_.max_blocks = group_.options_.max_processors;
  parameters_.cancelled = &group_.words_->cancelled.value;
  Status status = group_.api_.launch(parameters_, stream_);
  parameters_.segment_count = 0;
  return status;
}

/// Copies this rank's part to where its peers read it, unless they can read it in place: all shares in rows, or one run.
Status DeviceGroup::give(Enqueuing& e, const Piece& piece) {
  if (e.registered || e.gives == Part::nothing) return {};
  Copies copies(*this, e.stream);
  std::byte* slot = staging_ + input_offset(piece.slot);
  for (std::size_t share = 0; share < piece.runs.size(); ++share) {
    const Run& run = piece.runs[share];
    if (e.gives == Part::own && share != e.rank) continue;
    std::byte* row = slot + (e.gives == Part::own ? 0 : run.row);
    if (Status status = copies.add({e.input_of(run)}, row, e.bytes(run)); !status.ok()) return status;
  }
  return copies.flush();
}

/// Announces the next tick to all ranks of the node, with the place of `announced` where there is one, and waits for their
/// ticks.
Status DeviceGroup::meet(Enqueuing& e, const Piece* announced, bool waits) {
  std::array<FlagOperation, 3 + 2 * kernels::kMaxPeers> operations;
  std::size_t count = 0;
  const auto add = [&](FlagOperation::Kind kind, std::uint32_t* flag, std::uint32_t value) {
    operations[count++] = {kind, flag, value};
  };
  if (announced != nullptr) {
    std::uint64_t offset = input_offset(announced->slot);
    if (e.registered) {
      const Run& run = e.gives == Part::own ? announced->runs[e.rank] : announced->whole();
      offset = static_cast<std::uint64_t>(e.input_of(run) - registered_[*e.registered].base);
    }
    kernels::Place* written = board_->place(node_rank_, announced->slot);
    add(FlagOperation::Kind::write, &written->buffer, e.registered.value_or(0));
    add(FlagOperation::Kind::write, &written->offset_low, static_cast<std::uint32_t>(offset));
    add(FlagOperation::Kind::write, &written->offset_high, static_cast<std::uint32_t>(offset >> 32));
  }
  const std::uint32_t tick = ++tick_;
  for (int i = 1; i < node_size_; ++i) {
    add(FlagOperation::Kind::write, board_->flag((node_rank_ + i) % node_size_, node_rank_), tick);
  }
  for (int i = 1; i < node_size_ && waits; ++i) {
    add(FlagOperation::Kind::wait, board_->flag(node_rank_, (node_rank_ + i) % node_size_), tick);
  }
  return count == 0 ? Status() : api_.flags(e.stream, {operations.data(), count});
}

/// A fold of `count` elements that lie `offset_bytes` behind the beginning of what each rank has given; targets are not set.
kernels::FoldParameters DeviceGroup::fold_of(const Enqueuing& e, const Piece& piece, std::size_t offset_bytes,
                                             std::size_t count) const {
  kernels::FoldParameters fold;
  for (int rank = 0; rank < node_size_; ++rank) fold.sources[rank] = given_by(rank, piece, offset_bytes);
  fold.source_count = node_size_;
  fold.count = count;
  fold.type = e.what.type;
  fold.op = e.what.op;
  fold.divisor = kernels::divisor_of(e.what.op, node_size_);
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return fold;
}

/// One shot: this rank folds everything, if it takes anything.
Status DeviceGroup::fold_all(Enqueuing& e, const Piece& piece) {
  if (e.takes == Part::nothing) return {};
  kernels::FoldParameters fold = fold_of(e, piece, 0, piece.whole().count);
  fold.targets[0] = e.output_of(piece.whole());
  return api_.launch(fold, e.stream);
}

/// Two shots, first step: folds this rank's share into its slot of results, where its peers read it, and into its output.
Status DeviceGroup::fold_share(Enqueuing& e, const Piece& piece, int divisor) {
  const kernels::Share share = kernels::share_of(piece.whole().count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  const std::size_t offset = share.begin * e.element_bytes;
  kernels::FoldParameters fold = fold_of(e, piece, offset, share.count);
  fold.targets[0] = staging_ + result_offset(piece.slot) + offset;
  if (e.route == Route::peer && e.takes != Part::nothing) fold.targets[1] = e.output_of(piece.whole()) + offset;
  fold.divisor = divisor;
  return api_.launch(fold, e.stream);
}

/// Second step: takes the shares of the peers.
Status DeviceGroup::gather_shares(Enqueuing& e, const Piece& piece) {
  if (e.takes == Part::nothing) return {};
  Copies copies(*this, e.stream);
  for (int i = 1; i < node_size_; ++i) {
    const int rank = (node_rank_ + i) % node_size_;  // not all from the same rank at once
    const kernels::Share share = kernels::share_of(piece.whole().count, e.element_bytes, rank, node_size_);
    const std::size_t offset = share.begin * e.element_bytes;
    const std::byte* from = peers_[static_cast<std::size_t>(rank)] + result_offset(piece.slot) + offset;
    Status status = copies.add({from}, e.output_of(piece.whole()) + offset, share.count * e.element_bytes);
    if (!status.ok()) return status;
  }
  return copies.flush();
}

/// reduce_scatter: folds this rank's own share.
Status DeviceGroup::fold_block(Enqueuing& e, const Piece& piece) {
  const Run& own = piece.runs[e.rank];
  if (own.count == 0) return {};
  kernels::FoldParameters fold = fold_of(e, piece, own.row, own.count);
  fold.targets[0] = e.output_of(own);
  return api_.launch(fold, e.stream);
}

/// Collectives without a fold: copies what this rank takes from what each rank has given. Its own part comes from its input,
/// unless it lies in its place already.
Status DeviceGroup::take(Enqueuing& e, const Piece& piece) {
  if (e.takes == Part::nothing) return {};
  Copies copies(*this, e.stream);
  const bool dealt = piece.runs.size() > 1;
  const Run& own = piece.runs[dealt ? e.rank : 0];
  for (int i = 0; i < node_size_; ++i) {
    const int place = (node_rank_ + i) % node_size_;
    const int rank = node_ranks_[static_cast<std::size_t>(place)];
    const Part theirs = given(e.what, rank);
    const Run& to = dealt && e.takes == Part::all ? piece.runs[static_cast<std::size_t>(rank)] : own;
    const bool is_there = place == node_rank_ && e.input_of(own) == e.output_of(to);
    if (theirs == Part::nothing || is_there) continue;
    // A rank that has given all shares has laid them in rows, each for another rank.
    const auto source =
        place == node_rank_ ? kernels::Source{e.input_of(own)} : given_by(place, piece, theirs == Part::all ? own.row : 0);
    if (Status status = copies.add(source, e.output_of(to), e.bytes(to)); !status.ok()) return status;
  }
  return copies.flush();
}

/// All steps in one kernel, which waits inside for the kernels of the other ranks.
Status DeviceGroup::all_reduce_fused(Enqueuing& e, const Piece& piece) {
  const std::size_t count = piece.whole().count;
  kernels::FusedParameters fused;
  fused.input = e.input_of(piece.whole());
  fused.output = e.output_of(piece.whole());
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    fused.staging[rank] = peers_[rank] + input_offset(piece.slot);
    fused.results[rank] = peers_[rank] + result_offset(piece.slot);
    fused.flags[rank] = reinterpret_cast<std::uint32_t*>(peers_[rank]);
  }
  fused.rank = node_rank_;
  fused.ranks = node_size_;
  fused.count = count;
  fused.type = e.what.type;
  fused.op = e.what.op;
  fused.divisor = kernels::divisor_of(e.what.op, node_size_);
  fused.two_shot = !one_shot(e);
  fused.blocks = kernels::blocks_for(count * e.element_bytes, std::min(options_.max_processors, kernels::kMaxFusedBlocks));
  fused.epoch = epoch_;
  fused.cancelled = &words_->cancelled.value;
  epoch_ += 2;
  return api_.launch(fused, e.stream);
}

}  // namespace shoal::cuda
