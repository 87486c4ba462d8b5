// What a piece does in the memory of the ranks of a node. Each function enqueues on the caller's stream.
//
// The order of things, by which nothing is overwritten that somebody still reads: a rank's flag says how many ticks its stream
// has come through, each behind the kernels before it. A slot is used again two pieces later at the earliest (slot_count()),
// and in between the stream has waited for a tick that every rank announces only after it has read the slot.
#include <algorithm>
#include <array>

#include "kernels/partition.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

/// Up to here everybody reads everything: it saves a round of flags. Not measured yet.
constexpr std::size_t kOneShotBytes = std::size_t{128} << 10;
constexpr std::size_t kFusedFlagsBytes = sizeof(std::uint32_t) * kernels::kMaxPeers * kernels::kMaxFusedBlocks;

/// Blocks of a piece lie this far apart in a slot.
std::size_t row_bytes(std::size_t bytes) {
  return (bytes + kernels::kVectorBytes - 1) / kernels::kVectorBytes * kernels::kVectorBytes;
}

void add_segment(kernels::CopyParameters& copies, const kernels::Source& source, std::byte* target, std::size_t bytes) {
  if (bytes == 0) return;
  copies.segments[copies.segment_count++] = {source, target, bytes};
}

}  // namespace

std::size_t DeviceGroup::input_offset(std::size_t slot) const noexcept { return kFusedFlagsBytes + slot * slot_bytes_; }
std::size_t DeviceGroup::result_offset(std::size_t slot) const noexcept {
  return kFusedFlagsBytes + (slot_count() + slot) * slot_bytes_;
}

/// By the size of the message: the same on all ranks, and for all pieces of it.
bool DeviceGroup::one_shot(const Enqueuing& e) const noexcept {
  return e.call->signature.count * e.element_bytes <= kOneShotBytes || node_size_ == 1;
}

kernels::Source DeviceGroup::given_by(int rank, const Piece& piece, std::size_t offset_bytes) const {
  return {nullptr, board_->place(rank, piece.slot), words_->bases[rank], offset_bytes};
}

/// Lays this rank's part where the others read it, unless they can read it where it is.
Status DeviceGroup::give(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  if (e.registered || (what.kind == CollectiveKind::broadcast && what.root != static_cast<std::uint32_t>(node_rank_)))
    return {};
  kernels::CopyParameters copies;
  std::byte* slot = staging_ + input_offset(piece.slot);
  const std::size_t bytes = piece.count * e.element_bytes;
  if (what.kind == CollectiveKind::reduce_scatter) {
    for (int rank = 0; rank < node_size_; ++rank) {
      const std::size_t from = (static_cast<std::size_t>(rank) * what.count + piece.begin) * e.element_bytes;
      add_segment(copies, {e.input + from}, slot + static_cast<std::size_t>(rank) * row_bytes(bytes), bytes);
    }
  } else {
    add_segment(copies, {e.input + piece.begin * e.element_bytes}, slot, bytes);
  }
  copies.max_blocks = options_.max_processors;
  copies.cancelled = &words_->cancelled.value;
  return api_.launch(copies, e.stream);
}

/// Announces the next tick to all ranks of the node, with the place of `announced` where there is one, and waits for theirs.
Status DeviceGroup::meet(Enqueuing& e, const Piece* announced, bool waits) {
  std::array<FlagOperation, 3 + 2 * kernels::kMaxPeers> operations;
  std::size_t count = 0;
  const auto add = [&](FlagOperation::Kind kind, std::uint32_t* flag, std::uint32_t value) {
    operations[count++] = {kind, flag, value};
  };
  if (announced != nullptr) {
    kernels::Place place{0, static_cast<std::uint32_t>(input_offset(announced->slot)),
                         static_cast<std::uint32_t>(std::uint64_t{input_offset(announced->slot)} >> 32)};
    if (e.registered) {
      const std::uint64_t offset =
          (std::uint64_t{e.registered->offset_high} << 32 | e.registered->offset_low) + announced->begin * e.element_bytes;
      place = {e.registered->buffer, static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32)};
    }
    kernels::Place* written = board_->place(node_rank_, announced->slot);
    add(FlagOperation::Kind::write, &written->buffer, place.buffer);
    add(FlagOperation::Kind::write, &written->offset_low, place.offset_low);
    add(FlagOperation::Kind::write, &written->offset_high, place.offset_high);
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

/// One shot: this rank folds everything.
Status DeviceGroup::fold_all(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  kernels::FoldParameters fold;
  for (int rank = 0; rank < node_size_; ++rank) fold.sources[rank] = given_by(rank, piece, 0);
  fold.source_count = node_size_;
  fold.targets[0] = e.output + piece.begin * e.element_bytes;
  fold.count = piece.count;
  fold.type = what.type;
  fold.op = what.op;
  fold.divisor = kernels::divisor_of(what.op, node_size_);
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return api_.launch(fold, e.stream);
}

/// Two shots, the first: this rank folds its share, into its slot of results, where the others read it, and into its output.
Status DeviceGroup::fold_share(Enqueuing& e, const Piece& piece, int divisor) {
  const Signature& what = e.call->signature;
  const kernels::Share share = kernels::share_of(piece.count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  const std::size_t offset = share.begin * e.element_bytes;
  kernels::FoldParameters fold;
  for (int rank = 0; rank < node_size_; ++rank) fold.sources[rank] = given_by(rank, piece, offset);
  fold.source_count = node_size_;
  fold.targets[0] = staging_ + result_offset(piece.slot) + offset;
  if (e.route == Route::peer) fold.targets[1] = e.output + piece.begin * e.element_bytes + offset;
  fold.count = share.count;
  fold.type = what.type;
  fold.op = what.op;
  fold.divisor = divisor;
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return api_.launch(fold, e.stream);
}

/// The second: takes the other shares.
Status DeviceGroup::gather_shares(Enqueuing& e, const Piece& piece) {
  kernels::CopyParameters copies;
  for (int i = 1; i < node_size_; ++i) {
    const int rank = (node_rank_ + i) % node_size_;  // not all from the same rank at once
    const kernels::Share share = kernels::share_of(piece.count, e.element_bytes, rank, node_size_);
    const std::size_t offset = share.begin * e.element_bytes;
    add_segment(copies, {peers_[static_cast<std::size_t>(rank)] + result_offset(piece.slot) + offset},
                e.output + piece.begin * e.element_bytes + offset, share.count * e.element_bytes);
  }
  if (copies.segment_count == 0) return {};
  copies.max_blocks = options_.max_processors;
  copies.cancelled = &words_->cancelled.value;
  return api_.launch(copies, e.stream);
}

/// reduce_scatter: this rank folds the block that is its own.
Status DeviceGroup::fold_block(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  const std::size_t row = static_cast<std::size_t>(node_rank_) * row_bytes(piece.count * e.element_bytes);
  kernels::FoldParameters fold;
  for (int rank = 0; rank < node_size_; ++rank) fold.sources[rank] = given_by(rank, piece, row);
  fold.source_count = node_size_;
  fold.targets[0] = e.output + piece.begin * e.element_bytes;
  fold.count = piece.count;
  fold.type = what.type;
  fold.op = what.op;
  fold.divisor = kernels::divisor_of(what.op, node_size_);
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return api_.launch(fold, e.stream);
}

/// all_gather: copies what each rank has given to its place, this rank's own included unless it lies there.
Status DeviceGroup::take_blocks(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  kernels::CopyParameters copies;
  for (int i = 0; i < node_size_; ++i) {
    const int rank = (node_rank_ + i) % node_size_;
    std::byte* target = e.output + (static_cast<std::size_t>(rank) * what.count + piece.begin) * e.element_bytes;
    const std::byte* own = e.input + piece.begin * e.element_bytes;
    if (rank == node_rank_ && target == own) continue;
    add_segment(copies, rank == node_rank_ ? kernels::Source{own} : given_by(rank, piece, 0), target,
                piece.count * e.element_bytes);
  }
  if (copies.segment_count == 0) return {};
  copies.max_blocks = options_.max_processors;
  copies.cancelled = &words_->cancelled.value;
  return api_.launch(copies, e.stream);
}

Status DeviceGroup::take_from_root(Enqueuing& e, const Piece& piece) {
  const auto root = static_cast<int>(e.call->signature.root);
  if (root == node_rank_) return {};
  kernels::CopyParameters copies;
  add_segment(copies, given_by(root, piece, 0), e.output + piece.begin * e.element_bytes, piece.count * e.element_bytes);
  copies.max_blocks = options_.max_processors;
  copies.cancelled = &words_->cancelled.value;
  return api_.launch(copies, e.stream);
}

/// Everything in one kernel, which waits inside for those of the other ranks.
Status DeviceGroup::all_reduce_fused(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  const std::size_t offset = piece.begin * e.element_bytes;
  kernels::FusedParameters fused;
  fused.input = e.input + offset;
  fused.output = e.output + offset;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    fused.staging[rank] = peers_[rank] + input_offset(piece.slot);
    fused.results[rank] = peers_[rank] + result_offset(piece.slot);
    fused.flags[rank] = reinterpret_cast<std::uint32_t*>(peers_[rank]);
  }
  fused.rank = node_rank_;
  fused.ranks = node_size_;
  fused.count = piece.count;
  fused.type = what.type;
  fused.op = what.op;
  fused.divisor = kernels::divisor_of(what.op, node_size_);
  fused.two_shot = !one_shot(e);
  fused.blocks =
      kernels::blocks_for(piece.count * e.element_bytes, std::min(options_.max_processors, kernels::kMaxFusedBlocks));
  fused.epoch = epoch_;
  fused.cancelled = &words_->cancelled.value;
  epoch_ += 2;
  return api_.launch(fused, e.stream);
}

}  // namespace shoal::cuda
