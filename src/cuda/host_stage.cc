// What a piece does in the host's memory: the stream copies it to a slot of pinned memory and says so, the group's thread hands
// it to the host's engine, the stream waits for a flag and copies the result back. Copy engines do the copies, SMs nothing.
//
// The stream says so by a function of the host and not by a flag: a thread that sleeps cannot be woken by a word of memory.
#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/partition.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {

Status DeviceGroup::hand_over(Enqueuing& e, const Piece& piece, Communicator& via, const Signature& what, std::byte* input,
                              std::byte* output) {
  Tile& tile = e.call->tiles.emplace_back();
  tile.group = this;
  tile.call = e.call;
  tile.via = &via;
  tile.what = what;
  tile.input = input;
  tile.output = output;
  tile.flag = &words_->tile_done[piece.slot].value;
  tile.value = piece.number + 1;
  return api_.call_host(e.stream, &DeviceGroup::tile_arrived, &tile);
}

Status DeviceGroup::await_tile(Enqueuing& e, const Piece& piece) {
  const FlagOperation wait{FlagOperation::Kind::wait, &words_->tile_done[piece.slot].value, piece.number + 1};
  return api_.flags(e.stream, {&wait, 1});
}

/// Between nodes, the rank's share: from its slot of results to the host.
Status DeviceGroup::share_to_host(Enqueuing& e, const Piece& piece) {
  const kernels::Share share = kernels::share_of(piece.count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  std::byte* slot = tiles_ + piece.slot * slot_bytes_;
  const std::byte* folded = staging_ + result_offset(piece.slot) + share.begin * e.element_bytes;
  if (Status status = api_.copy(slot, folded, share.count * e.element_bytes, e.stream); !status.ok()) return status;
  Signature what = e.call->signature;
  what.count = share.count;
  if (what.op == ReduceOp::avg) what.op = ReduceOp::sum;  // divided once, at the end
  return hand_over(e, piece, *rail_, what, slot, slot);
}

/// Back, to the slot of results, where the node reads it, and to the output.
Status DeviceGroup::share_from_host(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  const kernels::Share share = kernels::share_of(piece.count, e.element_bytes, node_rank_, node_size_);
  if (share.count == 0) return {};
  if (Status status = await_tile(e, piece); !status.ok()) return status;
  const std::size_t offset = share.begin * e.element_bytes;
  std::byte* results = staging_ + result_offset(piece.slot) + offset;
  const std::byte* slot = tiles_ + piece.slot * slot_bytes_;
  if (Status status = api_.copy(results, slot, share.count * e.element_bytes, e.stream); !status.ok()) return status;
  std::byte* output = e.output + piece.begin * e.element_bytes + offset;
  if (what.op != ReduceOp::avg) return api_.copy(output, results, share.count * e.element_bytes, e.stream);
  kernels::FoldParameters fold;
  fold.sources[0].address = results;
  fold.source_count = 1;
  fold.targets[0] = results;
  fold.targets[1] = output;
  fold.count = share.count;
  fold.type = what.type;
  fold.op = what.op;
  fold.divisor = communicator_.size();
  fold.max_blocks = options_.max_processors;
  fold.cancelled = &words_->cancelled.value;
  return api_.launch(fold, e.stream);
}

/// Everything through the host: what this rank gives lies in the slot as the communicator takes it in place.
Status DeviceGroup::piece_to_host(Enqueuing& e, const Piece& piece) {
  Signature what = e.call->signature;
  const std::size_t bytes = piece.count * e.element_bytes;
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  const std::size_t own = static_cast<std::size_t>(communicator_.rank()) * bytes;
  std::byte* slot = tiles_ + piece.slot * slot_bytes_;
  std::byte* input = slot;
  std::byte* output = slot;
  if (what.kind == CollectiveKind::reduce_scatter) {
    output = slot + own;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::byte* block = e.input + (rank * what.count + piece.begin) * e.element_bytes;
      if (Status status = api_.copy(slot + rank * bytes, block, bytes, e.stream); !status.ok()) return status;
    }
  } else if (what.kind != CollectiveKind::broadcast || what.root == static_cast<std::uint32_t>(communicator_.rank())) {
    if (what.kind == CollectiveKind::all_gather) input = slot + own;
    if (Status status = api_.copy(input, e.input + piece.begin * e.element_bytes, bytes, e.stream); !status.ok()) return status;
  }
  what.count = piece.count;
  return hand_over(e, piece, *all_, what, input, output);
}

Status DeviceGroup::piece_from_host(Enqueuing& e, const Piece& piece) {
  const Signature& what = e.call->signature;
  const std::size_t bytes = piece.count * e.element_bytes;
  const std::byte* slot = tiles_ + piece.slot * slot_bytes_;
  if (Status status = await_tile(e, piece); !status.ok()) return status;
  if (what.kind == CollectiveKind::all_gather) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(communicator_.size()); ++rank) {
      std::byte* block = e.output + (rank * what.count + piece.begin) * e.element_bytes;
      if (Status status = api_.copy(block, slot + rank * bytes, bytes, e.stream); !status.ok()) return status;
    }
    return {};
  }
  if (what.kind == CollectiveKind::reduce_scatter) slot += static_cast<std::size_t>(communicator_.rank()) * bytes;
  return api_.copy(e.output + piece.begin * e.element_bytes, slot, bytes, e.stream);
}

/// In a thread of the driver.
void DeviceGroup::tile_arrived(void* argument) {
  auto* tile = static_cast<Tile*>(argument);
  DeviceGroup& group = *tile->group;
  {
    const std::scoped_lock lock(group.state_->mutex);
    group.arrived_.push_back(tile);
    group.news_.notify_one();  // with the lock held: the group may be gone right after
  }
}

/// In the group's thread. Calls of the engine begin in the order in which the stream has come to them, which is that of the
/// calls: the same on all ranks.
void DeviceGroup::start_tile(Tile& tile) {
  CallOptions options;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(tile.call->deadline - Clock::now());
  options.timeout = std::max(left, std::chrono::milliseconds(1));
  Communicator& via = *tile.via;
  const auto start = [&]() -> Result<Work> {
    switch (tile.what.kind) {
      case CollectiveKind::all_gather:
        return via.all_gather_async(tile.input, tile.output, tile.what.count, tile.what.type, options);
      case CollectiveKind::reduce_scatter:
        return via.reduce_scatter_async(tile.input, tile.output, tile.what.count, tile.what.type, tile.what.op, options);
      case CollectiveKind::broadcast:
        return via.broadcast_async(tile.output, tile.what.count, tile.what.type, static_cast<int>(tile.what.root), options);
      default:
        return via.all_reduce_async(tile.input, tile.output, tile.what.count, tile.what.type, tile.what.op, options);
    }
  };
  Result<Work> work = start();
  if (!work.ok()) return end_tile(tile, work.status());
  Status refused = work->on_completion([this, &tile](const Status& outcome) { end_tile(tile, outcome); });
  if (!refused.ok()) end_tile(tile, refused);
}

/// In the thread that has ended the engine's call.
void DeviceGroup::end_tile(Tile& tile, const Status& outcome) {
  const std::scoped_lock lock(state_->mutex);
  --tile.call->tiles_in_engine;
  if (outcome.ok() && state_->failure.ok()) {
    // Release: the stream that sees the flag reads the result behind it.
    std::atomic_ref(*tile.flag).store(tile.value, std::memory_order_release);
  } else if (!outcome.ok() && !noted_ && state_->failure.ok()) {
    noted_ = outcome;
  }
  news_.notify_one();
}

}  // namespace shoal::cuda
