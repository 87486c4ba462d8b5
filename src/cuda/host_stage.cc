// A piece in the host's memory: the stream copies it to a slot of pinned memory and calls a host function, the group's thread
// hands it to the host's engine, the stream waits for a flag and copies the result back. Copy engines do the copies, SMs
// nothing.
//
// The stream calls a host function instead of writing a flag, since a write to memory cannot wake a thread that sleeps.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

/// Whether the sender's message is the one that this rank expects.
Status check_header(const Tile& tile) {
  MailHeader theirs;
  std::memcpy(&theirs, tile.message, sizeof theirs);
  if (theirs == tile.header) return {};
  return {StatusCode::mismatch,
          fmt::format("{}: piece {} of {} bytes of {} was expected from rank {}, but piece {} of {} bytes of {} arrived",
                      tile.call->name(), tile.header.piece, tile.header.bytes,
                      shoal::to_string(static_cast<DataType>(tile.header.type)), tile.what.peer, theirs.piece, theirs.bytes,
                      shoal::to_string(static_cast<DataType>(theirs.type)))};
}

}  // namespace

/// `counts`: of the shares, where they differ.
Status DeviceGroup::hand_over(Enqueuing& e, const Piece& piece, Communicator& via, const Request& what,
                              std::vector<std::size_t> counts) {
  Tile& tile = e.call->tiles.emplace_back();
  tile.call = e.call.get();
  tile.via = &via;
  tile.what = what;
  tile.counts = std::move(counts);
  tile.what.has_counts = !tile.counts.empty();
  tile.what.counts = tile.counts;
  tile.flag = &words_->tile_done[piece.slot].value;
  tile.value = piece.number + 1;
  return api_.call_host(e.stream, &DeviceGroup::tile_arrived, &tile);
}

Status DeviceGroup::await_tile(Enqueuing& e, const Piece& piece) {
  const FlagOperation wait{FlagOperation::Kind::wait, &words_->tile_done[piece.slot].value, piece.number + 1};
  return api_.flags(e.stream, {&wait, 1});
}

/// Where the engine writes the result of a tile: in place, except for an all_to_all, which has a half of the slot for each
/// side.
std::byte* DeviceGroup::taken_slot(const Enqueuing& e, const Piece& piece) const {
  const bool two_halves = e.what.kind == CollectiveKind::all_to_all;
  return tiles_ + piece.slot * slot_bytes_ + (two_halves ? slot_bytes_ / 2 : 0);
}

/// All data goes through the host: the slot holds the message of the piece, of which this rank gives its part.
Status DeviceGroup::piece_to_host(Enqueuing& e, const Piece& piece) {
  std::byte* slot = tiles_ + piece.slot * slot_bytes_;
  const std::size_t own = e.gives == Part::own || e.takes == Part::own ? piece.runs[e.rank].row : 0;
  for (std::size_t share = 0; share < piece.runs.size(); ++share) {
    const Run& run = piece.runs[share];
    if (e.gives == Part::nothing || (e.gives == Part::own && share != e.rank) || run.count == 0) continue;
    if (Status status = api_.copy(slot + run.row, e.input_of(run), e.bytes(run), e.stream); !status.ok()) return status;
  }
  const Request what = e.on_host(slot + (e.gives == Part::own ? own : 0),
                                 taken_slot(e, piece) + (e.takes == Part::own ? own : 0), piece.whole().count);
  std::vector<std::size_t> counts;
  if (!e.what.counts.empty()) {
    for (const Run& run : piece.runs) counts.push_back(run.count);
  }
  return hand_over(e, piece, *all_, what, std::move(counts));
}

Status DeviceGroup::piece_from_host(Enqueuing& e, const Piece& piece) {
  if (Status status = await_tile(e, piece); !status.ok()) return status;
  const std::byte* slot = taken_slot(e, piece);
  for (std::size_t share = 0; share < piece.runs.size(); ++share) {
    const Run& run = piece.runs[share];
    if (e.takes == Part::nothing || (e.takes == Part::own && share != e.rank) || run.count == 0) continue;
    if (Status status = api_.copy(e.output_of(run), slot + run.row, e.bytes(run), e.stream); !status.ok()) return status;
  }
  return {};
}

/// Runs in a thread of the driver. The group may be destroyed where it has not waited for a stuck stream.
void DeviceGroup::tile_arrived(void* argument) {
  auto* tile = static_cast<Tile*>(argument);
  GroupState& state = *tile->call->state;
  const std::scoped_lock lock(state.mutex);
  ++tile->call->open_tiles;
  state.arrived.push_back(tile);
  state.news.notify_one();
}

/// Runs in the group's thread. Calls of the engine start in the order in which the stream reached them, which is that of the
/// calls: the same on all ranks.
void DeviceGroup::start_tile(Tile& tile) {
  CallOptions options;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(tile.call->deadline - Clock::now());
  options.timeout = std::max(left, std::chrono::milliseconds(1));
  if (tile.what.kind == CollectiveKind::send) std::memcpy(tile.message, &tile.header, sizeof tile.header);
  Result<Work> work = tile.via->submit_async(tile.what, options);
  if (!work.ok()) return end_tile(tile, work.status());
  Status refused = work->on_completion([this, &tile](const Status& outcome) { end_tile(tile, outcome); });
  if (!refused.ok()) end_tile(tile, refused);
}

/// Runs in the thread that has ended the engine's call.
void DeviceGroup::end_tile(Tile& tile, Status outcome) {
  if (outcome.ok() && tile.what.kind == CollectiveKind::receive) outcome = check_header(tile);
  const std::scoped_lock lock(state_->mutex);
  --tile.call->open_tiles;
  --with_engine_;
  if (outcome.ok() && state_->failure.ok()) {
    // Release: the stream that sees the flag reads the result behind it.
    std::atomic_ref(*tile.flag).store(tile.value, std::memory_order_release);
  } else if (!outcome.ok()) {
    state_->note(outcome);
  }
  state_->news.notify_one();
}

}  // namespace shoal::cuda
