// A call from its arguments to the last operation on the stream.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "kernels/partition.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_words.h"

namespace shoal::cuda {
namespace {

Status invalid_call(const Signature& signature, const std::string& what) {
  return {StatusCode::invalid_argument, fmt::format("{}: {}", to_string(signature), what)};
}

/// The calling thread works on another device, perhaps: not meanwhile.
class OnDevice {
 public:
  OnDevice(CudaApi& api, int device) : api_(api) {
    const auto current = api.current_device();
    if (!current.ok() || *current == device) return;
    before_ = *current;
    static_cast<void>(api.use_device(device));  // where this fails, so does what follows
  }
  ~OnDevice() {
    if (before_ >= 0) static_cast<void>(api_.use_device(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  CudaApi& api_;
  int before_ = -1;
};

}  // namespace

/// `what` of a buffer of `bytes` must lie in one allocation of the group's device.
Status DeviceGroup::check_buffer(const char* name, const void* buffer, std::size_t bytes) const {
  if (buffer == nullptr) return {StatusCode::invalid_argument, fmt::format("{} is null", name)};
  const auto memory = api_.describe_pointer(buffer);
  if (!memory.ok()) return memory.status();
  if (memory->kind != MemoryKind::device)
    return {StatusCode::invalid_argument,
            fmt::format("{} is not memory of a CUDA device; Communicator takes that of the host", name)};
  if (memory->device != device_)
    return {StatusCode::invalid_argument,
            fmt::format("{} is memory of device {}, this communicator was made for device {}", name, memory->device, device_)};
  const auto used = static_cast<std::size_t>(static_cast<const std::byte*>(buffer) - memory->base);
  if (used > memory->bytes || bytes > memory->bytes - used)
    return {StatusCode::invalid_argument,
            fmt::format("{} has {} bytes to the end of its allocation, the call needs {}", name, memory->bytes - used, bytes)};
  return {};
}

Status DeviceGroup::check(const Signature& signature, const void* input, const void* output, Stream stream) const {
  const std::size_t element_bytes = size_of(signature.type);
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  if (element_bytes == 0) return invalid_call(signature, "unknown data type");
  if (reduces(signature.kind) && !supports(signature.type, signature.op))
    return invalid_call(
        signature, fmt::format("{} is not defined on {}", shoal::to_string(signature.op), shoal::to_string(signature.type)));
  if (has_root(signature.kind) && signature.root >= ranks)
    return invalid_call(signature, fmt::format("there is no such rank; the ranks are 0 to {}", ranks - 1));
  if (signature.count > static_cast<std::size_t>(PTRDIFF_MAX) / element_bytes / ranks)
    return invalid_call(signature, "the count is larger than memory (a negative number?)");
  const auto capturing = api_.is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (*capturing)
    return {StatusCode::unsupported,
            fmt::format("{}: the stream is being captured into a CUDA graph, which shoal does not support; "
                        "make the call outside of the capture",
                        to_string(signature))};
  const bool deals_input = signature.kind == CollectiveKind::reduce_scatter;
  const bool deals_output = signature.kind == CollectiveKind::all_gather;
  const std::size_t bytes = signature.count * element_bytes;
  if (bytes == 0) return {};
  if (Status status = check_buffer("input", input, deals_input ? bytes * ranks : bytes); !status.ok()) return status;
  return check_buffer("output", output, deals_output ? bytes * ranks : bytes);
}

Result<std::shared_ptr<StreamCall>> DeviceGroup::call(const Signature& signature, const void* input, void* output,
                                                      Stream stream, std::optional<std::chrono::milliseconds> timeout) {
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status closed = status(); !closed.ok()) return Status(closed.code(), "the communicator is closed: " + closed.message());
  if (board_ != nullptr) {  // the engine hears of others' failures only while there are calls in flight
    if (Status cause = board_->given_up(node_size_); !cause.ok()) {
      note_failure(cause);
      return Status(cause.code(), "the communicator is closed: " + cause.message());
    }
  }
  if (timeout && timeout->count() <= 0)
    return invalid_call(signature, fmt::format("a timeout of {} ms is not positive", timeout->count()));
  if (Status status = check(signature, input, output, stream); !status.ok()) return status;

  auto call = std::make_shared<StreamCall>(state_);
  call->sequence = sequence_++;
  call->signature = signature;
  call->timeout = timeout.value_or(timeout_);
  call->deadline = Clock::now() + call->timeout;
  if (board_ != nullptr) {
    if (const auto other = board_->sign(node_rank_, node_size_, call->sequence, signature)) {
      const Status mismatch(StatusCode::mismatch,
                            fmt::format("call {} is {} on rank {}, and {} on rank {} of the node", call->sequence,
                                        to_string(signature), node_rank_, to_string(other->other), other->rank));
      note_failure(mismatch);
      return mismatch;
    }
  }
  Enqueuing e{call.get(),
              static_cast<const std::byte*>(input),
              static_cast<std::byte*>(output),
              stream,
              size_of(signature.type),
              route_,
              {}};
  if (route_ == Route::rails && signature.kind != CollectiveKind::all_reduce) e.route = Route::host;
  const Status enqueued = enqueue(e);
  const Status recorded = call->event == nullptr ? enqueued : api_.record(call->event, stream);
  {
    const std::scoped_lock lock(state_->mutex);
    if (!looking_out_ || call->deadline < next_look_ || !state_->failure.ok()) news_.notify_one();
    state_->prune();
    if (recorded.ok()) {
      state_->in_flight.push_back(call);
    } else {
      broken_.push_back(call);  // the stream may come to its tiles still
    }
  }
  if (!enqueued.ok() || !recorded.ok()) {
    // The stream holds part of a call now: the other ranks must not wait for the rest.
    const Status& why = enqueued.ok() ? recorded : enqueued;
    const Status cause(why.code(), fmt::format("{} (call {}): {}", to_string(signature), call->sequence, why.message()));
    note_failure(cause);
    return cause;
  }
  last_call_ = call;
  last_stream_ = stream;
  return call;
}

Status DeviceGroup::enqueue(Enqueuing& e) {
  StreamCall& call = *e.call;
  // Calls share slots, flags and tiles: they follow each other whatever their streams.
  if (last_call_ != nullptr && last_stream_ != e.stream) {
    if (Status status = api_.wait(e.stream, last_call_->event); !status.ok()) return status;
  }
  {
    const std::scoped_lock lock(state_->events_mutex);
    if (!state_->events.empty()) {
      call.event = state_->events.back();
      state_->events.pop_back();
    }
  }
  if (call.event == nullptr) {
    const auto event = api_.create_event();
    if (!event.ok()) return event.status();
    call.event = *event;
  }
  e.registered = find_registered(e);
  const std::size_t count = call.signature.count;
  const std::size_t each = elements_of_piece(e);
  const std::size_t pieces = (count + each - 1) / each;
  const std::size_t ahead = e.route == Route::peer ? 0 : lookahead_;
  std::deque<Piece> begun;
  for (std::size_t i = 0; i < pieces + ahead; ++i) {
    if (i < pieces) {
      const std::uint32_t number = piece_++;
      const Piece piece{number, number % slot_count(), i * each, std::min(each, count - i * each)};
      begun.push_back(piece);
      if (Status status = begin_piece(e, piece); !status.ok()) return status;
    }
    if (i >= ahead) {
      if (Status status = end_piece(e, begun.front()); !status.ok()) return status;
      begun.pop_front();
    }
  }
  // Who has lent its own buffer may not take it back before all have read it. All announce, as they cannot know who has.
  const bool may_lend = call.signature.kind == CollectiveKind::all_gather || call.signature.kind == CollectiveKind::broadcast;
  if (e.route == Route::peer && may_lend && pieces != 0) {
    if (Status status = meet(e, nullptr, e.registered.has_value()); !status.ok()) return status;
  }
  call.last_tick = tick_;
  return {};
}

/// As many as a slot takes of what a rank gives, or gets where everything goes through it.
std::size_t DeviceGroup::elements_of_piece(const Enqueuing& e) const {
  const CollectiveKind kind = e.call->signature.kind;
  const auto ranks = static_cast<std::size_t>(communicator_.size());
  // The blocks of a piece begin at whole vectors, so that they are as aligned as the slot.
  const bool blocks = kind == CollectiveKind::reduce_scatter || (kind == CollectiveKind::all_gather && e.route == Route::host);
  const std::size_t block_bytes = slot_bytes_ / (blocks ? ranks : 1) / kernels::kVectorBytes * kernels::kVectorBytes;
  return std::max<std::size_t>(block_bytes / e.element_bytes, 1);
}

Status DeviceGroup::begin_piece(Enqueuing& e, const Piece& piece) {
  if (e.route == Route::host) return piece_to_host(e, piece);
  const Signature& what = e.call->signature;
  if (what.kind == CollectiveKind::all_reduce && e.route == Route::peer && fuses_) return all_reduce_fused(e, piece);
  if (Status status = give(e, piece); !status.ok()) return status;
  if (Status status = meet(e, &piece, true); !status.ok()) return status;
  switch (what.kind) {
    case CollectiveKind::all_gather:
      return take_blocks(e, piece);
    case CollectiveKind::broadcast:
      return take_from_root(e, piece);
    case CollectiveKind::reduce_scatter:
      return fold_block(e, piece);
    default:
      break;
  }
  if (e.route == Route::rails) {
    if (Status status = fold_share(e, piece, 0); !status.ok()) return status;
    return share_to_host(e, piece);
  }
  if (one_shot(e)) return fold_all(e, piece);
  return fold_share(e, piece, kernels::divisor_of(what.op, node_size_));
}

Status DeviceGroup::end_piece(Enqueuing& e, const Piece& piece) {
  if (e.route == Route::host) return piece_from_host(e, piece);
  const bool one_step =
      e.call->signature.kind != CollectiveKind::all_reduce || (e.route == Route::peer && (fuses_ || one_shot(e)));
  if (one_step) return {};
  if (e.route == Route::rails) {
    if (Status status = share_from_host(e, piece); !status.ok()) return status;
  }
  if (Status status = meet(e, nullptr, true); !status.ok()) return status;
  return gather_shares(e, piece);
}

std::optional<kernels::Place> DeviceGroup::find_registered(const Enqueuing& e) const {
  const CollectiveKind kind = e.call->signature.kind;
  const bool read_as_it_lies = kind == CollectiveKind::all_gather || kind == CollectiveKind::broadcast ||
                               (kind == CollectiveKind::all_reduce && !one_shot(e) && !fuses_);
  if (!read_as_it_lies || e.route == Route::host || registered_.size() < 2 || e.call->signature.count == 0) return std::nullopt;
  const auto memory = api_.describe_pointer(e.input);
  if (!memory.ok()) return std::nullopt;
  for (std::size_t number = 1; number < registered_.size(); ++number) {
    if (registered_[number].allocation != memory->allocation) continue;
    const auto offset = static_cast<std::uint64_t>(e.input - registered_[number].base);
    return kernels::Place{static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(offset),
                          static_cast<std::uint32_t>(offset >> 32)};
  }
  return std::nullopt;
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

Status DeviceGroup::register_buffer(const void* buffer) {
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status closed = status(); !closed.ok()) return {closed.code(), "the communicator is closed: " + closed.message()};
  /// What a rank offers. code: why nothing.
  struct Offer {
    MemoryHandle handle;
    std::int32_t is_new = 0;
    std::int32_t code = 0;
  };
  Offer offer;
  Registered own;
  Status refused;
  const auto memory = api_.describe_pointer(buffer);
  if (route_ == Route::host)
    refused = Status(StatusCode::unsupported, "register_buffer: data goes through the host: " + why_host_);
  if (refused.ok()) refused = check_buffer("the buffer", buffer, 0);
  if (refused.ok()) {
    own = {memory->allocation, memory->base, memory->bytes};
    const auto known = [&](const Registered& each) { return each.allocation == own.allocation && each.bytes != 0; };
    offer.is_new = std::none_of(registered_.begin(), registered_.end(), known) ? 1 : 0;
    if (offer.is_new != 0 && registered_.size() == kernels::kMaxBuffers)
      refused = Status(StatusCode::unsupported,
                       fmt::format("register_buffer: {} allocations are registered already", registered_.size() - 1));
  }
  if (refused.ok() && offer.is_new != 0) {
    const auto handle = api_.export_memory(own.base);
    if (handle.ok()) offer.handle = *handle;
    refused = handle.status();
  }
  offer.code = static_cast<std::int32_t>(refused.code());
  std::vector<Offer> all(static_cast<std::size_t>(node_size_));
  if (Status status = node_->all_gather(&offer, all.data(), sizeof offer, DataType::uint8); !status.ok()) return status;
  std::vector<void*> mapped(all.size());
  for (std::size_t rank = 0; rank < all.size() && refused.ok(); ++rank) {
    if (all[rank].code != 0)
      refused =
          Status(static_cast<StatusCode>(all[rank].code), fmt::format("register_buffer: rank {} of the node cannot", rank));
    if (!refused.ok() || static_cast<int>(rank) == node_rank_ || all[rank].is_new == 0) continue;
    const auto imported = api_.import_memory(all[rank].handle);
    if (imported.ok()) mapped[rank] = *imported;
    refused = imported.status();
  }
  // In the end all have it or none has.
  if (Status status = everybody(refused, *all_, "register_buffer"); !status.ok()) {
    for (void* each : mapped) {
      if (each != nullptr) static_cast<void>(api_.forget_memory(each));
    }
    return status;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (mapped[rank] == nullptr) continue;
    imported_.push_back(mapped[rank]);
    words_->bases[rank][buffers_of_[rank]] = static_cast<std::byte*>(mapped[rank]);
    ++buffers_of_[rank];
  }
  if (offer.is_new != 0) {
    registered_.push_back(own);
    words_->bases[node_rank_][buffers_of_[static_cast<std::size_t>(node_rank_)]++] = own.base;
  }
  return {};
}

}  // namespace shoal::cuda
