// A collective from its arguments to the last operation on the stream.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/base/deadline.h"
#include "src/base/hash.h"
#include "src/communicator/integer_average.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_scope.h"
#include "src/plan/call_buffers.h"
#include "src/schedule/layout.h"

namespace shoal::cuda {
namespace {

/// A digest of the sizes of shares; never 0.
std::uint64_t digest_of(std::span<const std::size_t> counts) {
  std::uint64_t hash = kHashStart;
  for (const std::size_t count : counts) hash = hash_with(hash, count);
  return hash | 1;
}

Signature signature_of(const Collective& what) {
  Signature signature{what.count, 0, what.kind, what.type, what.op, static_cast<std::uint32_t>(what.root)};
  if (what.counts.empty()) return signature;
  const bool of_each_rank = what.kind == CollectiveKind::all_to_all;
  if (of_each_rank) signature.count = 0;
  signature.counts = of_each_rank ? 1 : digest_of(what.counts);
  return signature;
}

/// Which collectives use rails where there are any.
bool on_rails(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter ||
         kind == CollectiveKind::broadcast;
}

}  // namespace

std::string StreamCall::name() const {
  std::string text = to_string(signature);
  if (messages > 1) text += fmt::format(" and {} more", messages - 1);
  return fmt::format("{} ({} {})", text, messages == 0 ? "call" : "message", sequence);
}

/// The first `bytes` of `buffer` must lie in memory of the group's device.
Status DeviceGroup::check_buffer(const char* name, const void* buffer, std::size_t bytes) const {
  if (buffer == nullptr) return {StatusCode::invalid_argument, fmt::format("{} is null", name)};
  const auto* at = static_cast<const std::byte*>(buffer);
  for (std::size_t reached = 0;;) {  // what is one buffer to its user may be several allocations in a row
    const auto memory = api_.describe_pointer(at + reached);
    if (!memory.ok()) return memory.status();
    if (memory->kind != MemoryKind::device && reached == 0)
      return {StatusCode::invalid_argument,
              fmt::format("{} is not memory of a CUDA device; use Communicator for host memory", name)};
    if (memory->kind != MemoryKind::device)
      return {StatusCode::invalid_argument,
              fmt::format("{} has {} bytes to the end of its allocation, the call needs {}", name, reached, bytes)};
    if (memory->device != device_)
      return {StatusCode::invalid_argument, fmt::format("{} is memory of device {}, this communicator was made for device {}",
                                                        name, memory->device, device_)};
    reached = static_cast<std::size_t>(memory->base + memory->bytes - at);
    if (reached >= bytes) return {};
    if (!memory->mapped)
      return {StatusCode::invalid_argument,
              fmt::format("{} has {} bytes to the end of its allocation, the call needs {}", name, reached, bytes)};
  }
}

Status DeviceGroup::check_stream(const std::string& name, Stream stream) const {
  const auto capturing = api_.is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (!*capturing) return {};
  return {StatusCode::unsupported,
          fmt::format("{}: the stream is being captured into a CUDA graph, which shoal does not support; "
                      "make the call outside of the capture",
                      name)};
}

/// Returns the checked collective.
Result<Collective> DeviceGroup::check(const Request& request, Stream stream, const Timeout& timeout) const {
  const int rank = communicator_.rank();
  const int ranks = communicator_.size();
  const std::string_view name = internal::call_name(request.kind);
  CallOptions options;
  options.timeout = timeout;
  if (Status status = internal::CommunicatorImpl::of(*all_).check_open(); !status.ok()) return status;
  if (Status status = internal::check_arguments(request, options, rank, ranks); !status.ok()) return status;
  const Collective what = internal::collective_of(request);
  const auto unsupported = [&](const char* why) {
    return Status(StatusCode::unsupported, fmt::format("{}: {}", to_string(signature_of(what)), why));
  };
  if (internal::CommunicatorImpl::of(communicator_).numerics() == Numerics::strict && reduces(what.kind) &&
      is_floating(what.type))
    return unsupported(
        "SHOAL_NUMERICS=strict is not kept on CUDA memory: kernels add in an order that depends on where ranks are; use host "
        "memory, or SHOAL_NUMERICS=repeatable");
  if (internal::averages_integers(request, ranks))
    return unsupported(
        "the average of integers is unsupported on CUDA memory, where their sum could overflow the type; use host memory, or "
        "the sum of a wider type");
  if (const auto in_place = internal::check_buffers(request, what, rank, ranks); !in_place.ok()) return in_place.status();
  const CallBuffers buffers = call_buffers(what, ranks, rank);
  const auto check_one = [&](const char* buffer_name, const void* buffer, std::size_t bytes) -> Status {
    if (bytes == 0) return {};
    Status status = check_buffer(buffer_name, buffer, bytes);
    return status.ok() ? status : Status(status.code(), fmt::format("{}: {}", name, status.message()));
  };
  if (Status status = check_one("input", request.input, buffers.input_bytes); !status.ok()) return status;
  if (Status status = check_one("output", request.output, buffers.output_bytes); !status.ok()) return status;
  if (Status status = check_stream(to_string(signature_of(what)), stream); !status.ok()) return status;
  return what;
}

/// ok, or why the group is closed.
Status DeviceGroup::check_open() {
  if (Status closed = status(); !closed.ok()) return {closed.code(), "the communicator is closed: " + closed.message()};
  if (board_ == nullptr) return {};
  // The ProgressEngine learns of peers' failures only while calls are in flight.
  Status cause = board_->given_up(node_size_);
  if (cause.ok()) return {};
  note_failure(cause);
  return {cause.code(), "the communicator is closed: " + cause.message()};
}

std::shared_ptr<StreamCall> DeviceGroup::make_call(const Signature& signature, const Timeout& timeout) {
  auto call = std::make_shared<StreamCall>(state_);
  call->signature = signature;
  call->timeout = timeout.value_or(timeout_);
  call->deadline = deadline_after(call->timeout);
  return call;
}

/// Signs the call on the board. Returns the mismatch with a rank of the node that has signed another call.
Status DeviceGroup::sign(const StreamCall& call) {
  if (board_ == nullptr) return {};
  const auto differs = board_->sign(node_rank_, node_size_, call.sequence, call.signature);
  if (!differs) return {};
  return {StatusCode::mismatch, fmt::format("call {} is {} on rank {}, and {} on rank {} of the node", call.sequence,
                                            to_string(call.signature), node_rank_, to_string(differs->other), differs->rank)};
}

Result<std::shared_ptr<StreamCall>> DeviceGroup::call(const Request& request, Stream stream, Timeout timeout) {
  if (internal::is_message(request.kind)) return exchange({&request, 1}, stream, timeout);
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status status = check_open(); !status.ok()) return status;
  const auto what = check(request, stream, timeout);
  if (!what.ok()) return what.status();

  auto call = make_call(signature_of(*what), timeout);
  call->sequence = sequence_++;
  call->counts.assign(what->counts.begin(), what->counts.end());
  if (Status mismatch = sign(*call); !mismatch.ok()) {
    note_failure(mismatch);
    return mismatch;
  }
  Enqueuing e;
  e.call = call;
  e.what = *what;
  e.what.counts = call->counts;
  e.stream = stream;
  e.route = route_ == Route::rails && !on_rails(e.what.kind) ? Route::host : route_;
  e.element_bytes = size_of(e.what.type);
  e.rank = static_cast<std::size_t>(communicator_.rank());
  e.gives = given(e.what, communicator_.rank());
  e.takes = taken(e.what, communicator_.rank());
  const std::size_t own = share_offset_bytes(e.what, communicator_.size(), communicator_.rank());
  const void* input = e.what.kind == CollectiveKind::broadcast ? request.output : request.input;
  e.input = reinterpret_cast<std::uintptr_t>(input) - (e.gives == Part::own ? own : 0);
  e.output = reinterpret_cast<std::uintptr_t>(request.output) - (e.takes == Part::own ? own : 0);
  if (Status status = finish_call(call, stream, enqueue(e)); !status.ok()) return status;
  last_call_ = call;
  last_stream_ = stream;
  last_route_ = e.route;
  return call;
}

Status DeviceGroup::take_event(StreamCall& call) {
  {
    const std::scoped_lock lock(state_->events_mutex);
    if (!state_->events.empty()) {
      call.event = state_->events.back();
      state_->events.pop_back();
      return {};
    }
  }
  const auto event = api_.create_event();
  if (event.ok()) call.event = *event;
  return event.status();
}

/// Records the event behind all that the call has put on the stream.
Status DeviceGroup::finish_call(const std::shared_ptr<StreamCall>& call, Stream stream, const Status& enqueued) {
  const Status recorded = call->event == nullptr ? enqueued : api_.record(call->event, stream);
  {
    const std::scoped_lock lock(state_->mutex);
    if (!looking_out_ || call->deadline < next_look_ || !state_->failure.ok()) state_->news.notify_one();
    state_->prune();
    if (recorded.ok()) {
      state_->in_flight.push_back(call);
    } else {
      state_->broken.push_back(call);  // the stream may still reach its tiles
    }
  }
  if (enqueued.ok() && recorded.ok()) return {};
  // The stream holds part of a call now: the other ranks must not wait for the rest.
  const Status& why = enqueued.ok() ? recorded : enqueued;
  const Status cause(why.code(), fmt::format("{}: {}", call->name(), why.message()));
  note_failure(cause);
  return cause;
}

Status DeviceGroup::enqueue(Enqueuing& e) {
  // Calls share slots, flags and tiles, so they follow each other whatever their streams.
  if (last_call_ != nullptr && last_stream_ != e.stream) {
    if (Status status = api_.wait(e.stream, last_call_->event); !status.ok()) return status;
  }
  if (Status status = take_event(*e.call); !status.ok()) return status;
  Status status;
  if (e.what.kind == CollectiveKind::barrier) {
    status = enqueue_barrier(e);
  } else if (e.what.kind == CollectiveKind::all_to_all && !e.what.counts.empty()) {
    status = all_to_all_v(e);
  } else {
    status = enqueue_pieces(e);
  }
  e.call->last_tick = tick_;
  return status;
}

Status DeviceGroup::enqueue_pieces(Enqueuing& e) {
  // Pieces that went through the host alone have not made sure that no rank still reads the slots.
  if (e.route == Route::rails && last_route_ != Route::rails) {
    if (Status status = meet(e, nullptr, true); !status.ok()) return status;
  }
  e.registered = find_registered(e);
  const Shares shares(e.what, communicator_.size());
  const std::size_t pieces = pieces_of(e, shares);
  const std::size_t ahead = e.route == Route::peer ? 0 : lookahead_;
  std::deque<Piece> begun;
  for (std::size_t i = 0; i < pieces + ahead; ++i) {
    if (i < pieces) {
      const std::uint32_t number = piece_++;
      begun.push_back({number, number % slot_count(), shares.runs(i, pieces, e.route != Route::host)});
      if (Status status = begin_piece(e, begun.back()); !status.ok()) return status;
    }
    if (i >= ahead) {
      if (Status status = end_piece(e, begun.front()); !status.ok()) return status;
      begun.pop_front();
    }
  }
  // A rank that has given its own buffer (zero-copy) may reuse it only after all have read it. All ranks announce, as none
  // knows which have.
  if (e.route == Route::host || !may_lend(e.what.kind) || pieces == 0) return {};
  return meet(e, nullptr, e.registered.has_value());
}

/// With Route::peer the ranks wait for each other by flags alone; otherwise by a barrier of the host's engine, which knows all
/// ranks.
Status DeviceGroup::enqueue_barrier(Enqueuing& e) {
  if (e.route == Route::peer) return meet(e, nullptr, true);
  const std::uint32_t number = piece_++;
  const Piece piece{number, number % slot_count(), {}};
  if (Status status = hand_over(e, piece, *all_, Request::barrier()); !status.ok()) return status;
  return await_tile(e, piece);
}

/// As many pieces as needed for a slot to hold what goes through it at once.
std::size_t DeviceGroup::pieces_of(const Enqueuing& e, const Shares& shares) const {
  if (e.route == Route::host) {
    const bool two_halves = e.what.kind == CollectiveKind::all_to_all;
    return shares.pieces(two_halves ? slot_bytes_ / 2 : slot_bytes_, false);
  }
  if (e.gives == Part::own) {
    // One run of each rank of a rail goes through its slots.
    return shares.pieces(e.route == Route::rails ? slot_bytes_ / nodes_.size() : slot_bytes_, true);
  }
  return shares.pieces(slot_bytes_, false);
}

/// Whether ranks take folded shares from each other.
bool DeviceGroup::two_steps(const Enqueuing& e) const noexcept {
  if (e.what.kind != CollectiveKind::all_reduce && e.what.kind != CollectiveKind::reduce) return false;
  return e.route == Route::rails || (!one_shot(e) && !(fuses_ && e.what.kind == CollectiveKind::all_reduce));
}

Status DeviceGroup::begin_piece(Enqueuing& e, const Piece& piece) {
  if (e.route == Route::host) return piece_to_host(e, piece);
  if (e.route == Route::rails) return begin_on_rails(e, piece);
  if (e.what.kind == CollectiveKind::all_reduce && fuses_) return all_reduce_fused(e, piece);
  if (Status status = give(e, piece); !status.ok()) return status;
  if (Status status = meet(e, &piece, true); !status.ok()) return status;
  if (e.what.kind == CollectiveKind::reduce_scatter) return fold_block(e, piece);
  if (!reduces(e.what.kind)) return take(e, piece);
  if (two_steps(e)) return fold_share(e, piece, kernels::divisor_of(e.what.op, node_size_));
  return fold_all(e, piece);
}

Status DeviceGroup::end_piece(Enqueuing& e, const Piece& piece) {
  if (e.route == Route::host) return piece_from_host(e, piece);
  if (e.route == Route::rails) return end_on_rails(e, piece);
  if (!two_steps(e)) return {};
  if (Status status = meet(e, nullptr, true); !status.ok()) return status;
  return gather_shares(e, piece);
}

std::string DeviceGroup::route() const {
  switch (route_) {
    case Route::peer:
      return fuses_ ? "peer+fused" : "peer";
    case Route::rails:
      return "peer+host";
    case Route::host:
      break;
  }
  return "host";
}

}  // namespace shoal::cuda
