// Several nodes with equal numbers of ranks. A piece moves inside the node through the memory of its ranks; between nodes the
// host's engine moves it among the ranks of the same place in their nodes, a rail. Every byte that goes between nodes leaves
// and enters the memory of a device once.
//
// Each piece begins with a meet(): after it no rank of the node reads what the piece before the last has left in its slot.
#include <algorithm>
#include <utility>

#include "kernels/partition.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {

/// The runs of the ranks of one rail, one behind the other in the order of the nodes.
struct DeviceGroup::Stack {
  std::vector<std::size_t> counts;
  std::vector<std::size_t> offsets;  ///< bytes
  std::size_t bytes = 0;
};

DeviceGroup::Stack DeviceGroup::stack_of(const Enqueuing& e, const Piece& piece, int place) const {
  Stack stack;
  for (const std::vector<int>& node : nodes_) {
    const Run& run = piece.runs[static_cast<std::size_t>(node[static_cast<std::size_t>(place)])];
    stack.counts.push_back(run.count);
    stack.offsets.push_back(stack.bytes);
    stack.bytes += e.bytes(run);
  }
  return stack;
}

/// Hands the stack in the tile of `piece` to the rail, in which each rank gives or gets its own part.
Status DeviceGroup::stack_to_rail(Enqueuing& e, const Piece& piece, const Stack& stack) {
  std::byte* tile = tiles_ + piece.slot * slot_bytes_;
  const auto own = static_cast<std::size_t>(rail_->rank());
  std::byte* part = tile + stack.offsets[own];
  const bool gives_part = e.gives == Part::own;
  Request what = e.on_host(gives_part ? part : tile, gives_part ? tile : part, stack.counts[own]);
  if (what.op == ReduceOp::avg) what.op = ReduceOp::sum;  // divided once, at the end
  return hand_over(e, piece, *rail_, what, e.what.counts.empty() ? std::vector<std::size_t>() : stack.counts);
}

Status DeviceGroup::begin_on_rails(Enqueuing& e, const Piece& piece) {
  if (e.what.kind != CollectiveKind::all_gather) {
    if (Status status = give(e, piece); !status.ok()) return status;
  }
  if (Status status = meet(e, &piece, true); !status.ok()) return status;
  switch (e.what.kind) {
    case CollectiveKind::all_gather:
      return own_run_to_rail(e, piece);
    case CollectiveKind::reduce_scatter:
      return folded_runs_to_rail(e, piece);
    case CollectiveKind::broadcast:
      return share_of_root_to_rail(e, piece);
    default:
      break;
  }
  if (Status status = fold_share(e, piece, 0); !status.ok()) return status;
  return share_to_rail(e, piece, staging_ + result_offset(piece.slot));
}

Status DeviceGroup::end_on_rails(Enqueuing& e, const Piece& piece) {
  if (e.what.kind == CollectiveKind::all_gather) return take_stacks(e, piece);
  if (e.what.kind == CollectiveKind::reduce_scatter) return own_run_from_rail(e, piece);
  const bool has_it = e.what.kind == CollectiveKind::broadcast && root_is_near(e);
  if (Status status = share_from_rail(e, piece, has_it); !status.ok() || has_it) return status;
  if (Status status = meet(e, nullptr, true); !status.ok()) return status;
  return gather_shares(e, piece);
}

bool DeviceGroup::root_is_near(const Enqueuing& e) const {
  return std::find(node_ranks_.begin(), node_ranks_.end(), e.what.root) != node_ranks_.end();
}

/// all_reduce, broadcast: this rank's share of the piece, which lies at `piece_begin`.
Status DeviceGroup::share_to_rail(Enqueuing& e, const Piece& piece, const std::byte* piece_begin) {
  const kernels::Share share = kernels::share_of(piece.whole().count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  std::byte* tile = tiles_ + piece.slot * slot_bytes_;
  if (piece_begin != nullptr) {
    const std::byte* from = piece_begin + share.begin * e.element_bytes;
    if (Status status = api_.copy(tile, from, share.count * e.element_bytes, e.stream); !status.ok()) return status;
  }
  Request what = e.on_host(tile, tile, share.count);
  if (what.op == ReduceOp::avg) what.op = ReduceOp::sum;
  if (e.what.kind == CollectiveKind::broadcast) {
    const auto has_root = [&](const auto& node) { return std::find(node.begin(), node.end(), e.what.root) != node.end(); };
    what.root = static_cast<int>(std::find_if(nodes_.begin(), nodes_.end(), has_root) - nodes_.begin());
  }
  return hand_over(e, piece, *rail_, what);
}

/// Copies it back to the slot of results, where the node reads it, and to the output; unless the rank `has_it` already.
Status DeviceGroup::share_from_rail(Enqueuing& e, const Piece& piece, bool has_it) {
  const kernels::Share share = kernels::share_of(piece.whole().count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  if (Status status = await_tile(e, piece); !status.ok() || has_it) return status;
  const std::size_t offset = share.begin * e.element_bytes;
  const std::size_t bytes = share.count * e.element_bytes;
  std::byte* results = staging_ + result_offset(piece.slot) + offset;
  if (Status status = api_.copy(results, tiles_ + piece.slot * slot_bytes_, bytes, e.stream); !status.ok()) return status;
  std::byte* output = e.output_of(piece.whole()) + offset;
  if (reduces(e.what.kind) && e.what.op == ReduceOp::avg) return divide(e, results, results, output, share.count);
  return api_.copy(output, results, bytes, e.stream);
}

/// The last step of an average among all ranks; the second target may be null.
Status DeviceGroup::divide(Enqueuing& e, const std::byte* sum, std::byte* target, std::byte* second, std::size_t count) {
  kernels::FoldParameters fold;
  fold.sources[0].address = sum;
  fold.source_count = 1;
  fold.targets[0] = target;
  fold.targets[1] = second;
  fold.count = count;
  fold.type = e.what.type;
  fold.op = e.what.op;
  fold.divisor = communicator_.size();
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return api_.launch(fold, e.stream);
}

/// broadcast: the ranks of the root's node take the piece from the root, and each sends its share to its rail.
Status DeviceGroup::share_of_root_to_rail(Enqueuing& e, const Piece& piece) {
  if (!root_is_near(e)) return share_to_rail(e, piece, nullptr);
  if (Status status = take(e, piece); !status.ok()) return status;
  return share_to_rail(e, piece, e.output_of(piece.whole()));
}

/// all_gather: copies the own run directly from the input to the host.
Status DeviceGroup::own_run_to_rail(Enqueuing& e, const Piece& piece) {
  const Stack stack = stack_of(e, piece, node_rank_);
  if (stack.bytes == 0) return {};
  const Run& own = piece.runs[e.rank];
  std::byte* at = tiles_ + piece.slot * slot_bytes_ + stack.offsets[static_cast<std::size_t>(rail_->rank())];
  if (own.count != 0) {
    if (Status status = api_.copy(at, e.input_of(own), e.bytes(own), e.stream); !status.ok()) return status;
  }
  return stack_to_rail(e, piece, stack);
}

/// Copies the stack of this rank's rail back to the slot of results, except for its own part; then all ranks take all stacks.
Status DeviceGroup::take_stacks(Enqueuing& e, const Piece& piece) {
  const Stack stack = stack_of(e, piece, node_rank_);
  std::byte* results = staging_ + result_offset(piece.slot);
  if (stack.bytes != 0) {
    if (Status status = await_tile(e, piece); !status.ok()) return status;
    const std::byte* tile = tiles_ + piece.slot * slot_bytes_;
    const Run& own = piece.runs[e.rank];
    const std::size_t before = stack.offsets[static_cast<std::size_t>(rail_->rank())];
    const std::size_t behind = before + e.bytes(own);
    const std::tuple<std::size_t, const std::byte*, std::size_t> parts[] = {
        {0, tile, before}, {before, e.input_of(own), e.bytes(own)}, {behind, tile + behind, stack.bytes - behind}};
    for (const auto& [offset, from, bytes] : parts) {
      if (bytes == 0) continue;
      if (Status status = api_.copy(results + offset, from, bytes, e.stream); !status.ok()) return status;
    }
  }
  if (Status status = meet(e, nullptr, true); !status.ok()) return status;
  Copies copies(*this, e.stream);
  for (int i = 0; i < node_size_; ++i) {
    const int place = (node_rank_ + i) % node_size_;  // not all from the same rank at once
    const Stack theirs = stack_of(e, piece, place);
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      const auto rank = static_cast<std::size_t>(nodes_[node][static_cast<std::size_t>(place)]);
      std::byte* target = e.output_of(piece.runs[rank]);
      if (rank == e.rank && e.input_of(piece.runs[rank]) == target) continue;
      const std::byte* from = peers_[static_cast<std::size_t>(place)] + result_offset(piece.slot) + theirs.offsets[node];
      if (Status status = copies.add({from}, target, e.bytes(piece.runs[rank])); !status.ok()) return status;
    }
  }
  return copies.flush();
}

/// reduce_scatter: folds what the node gives to the ranks of this rail, and hands it to the rail.
Status DeviceGroup::folded_runs_to_rail(Enqueuing& e, const Piece& piece) {
  const Stack stack = stack_of(e, piece, node_rank_);
  if (stack.bytes == 0) return {};
  std::byte* results = staging_ + result_offset(piece.slot);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const Run& run = piece.runs[static_cast<std::size_t>(nodes_[node][static_cast<std::size_t>(node_rank_)])];
    if (run.count == 0) continue;
    kernels::FoldParameters fold = fold_of(e, piece, run.row, run.count);
    fold.targets[0] = results + stack.offsets[node];
    fold.divisor = 0;
    if (Status status = api_.launch(fold, e.stream); !status.ok()) return status;
  }
  std::byte* tile = tiles_ + piece.slot * slot_bytes_;
  if (Status status = api_.copy(tile, results, stack.bytes, e.stream); !status.ok()) return status;
  return stack_to_rail(e, piece, stack);
}

Status DeviceGroup::own_run_from_rail(Enqueuing& e, const Piece& piece) {
  const Stack stack = stack_of(e, piece, node_rank_);
  if (stack.bytes == 0) return {};
  if (Status status = await_tile(e, piece); !status.ok()) return status;
  const Run& own = piece.runs[e.rank];
  if (own.count == 0) return {};
  const std::byte* tile = tiles_ + piece.slot * slot_bytes_ + stack.offsets[static_cast<std::size_t>(rail_->rank())];
  std::byte* output = e.output_of(own);
  if (Status status = api_.copy(output, tile, e.bytes(own), e.stream); !status.ok()) return status;
  return e.what.op == ReduceOp::avg ? divide(e, output, output, nullptr, own.count) : Status();
}

}  // namespace shoal::cuda
