// Buffers of the caller that the other ranks of the node read in place.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/cuda/descriptors.h"
#include "src/cuda/device_group.h"
#include "src/cuda/device_scope.h"
#include "src/cuda/device_words.h"
#include "src/plan/call_buffers.h"
#include "src/schedule/layout.h"

namespace shoal::cuda {

/// The number of the registered buffer that holds all of the input, if there is one.
std::optional<std::uint32_t> DeviceGroup::find_registered(const Enqueuing& e) const {
  const bool two_shots = reduces(e.what.kind) && two_steps(e);
  const bool lends = may_lend(e.what.kind) && !(e.route == Route::rails && e.gives == Part::own);
  if (e.route == Route::host || !(two_shots || lends) || registrations_ == 0) return std::nullopt;
  const CallBuffers buffers = call_buffers(e.what, communicator_.size(), communicator_.rank());
  const bool in_output = e.what.kind == CollectiveKind::broadcast;
  const std::size_t bytes = in_output ? buffers.output_bytes : buffers.input_bytes;
  if (bytes == 0 || e.gives == Part::nothing) return std::nullopt;
  const std::size_t skipped = e.gives == Part::own ? share_offset_bytes(e.what, communicator_.size(), communicator_.rank()) : 0;
  const auto* input = reinterpret_cast<const std::byte*>(e.input + skipped);
  const auto memory = api_.describe_pointer(input);
  if (!memory.ok() || input + bytes > memory->base + memory->bytes) return std::nullopt;
  const std::uint32_t number = number_of(memory->allocation);
  return number == 0 ? std::nullopt : std::optional(number);
}

namespace {

/// What a rank sends its peers about its buffer in register_buffer and deregister_buffer.
struct Offer {
  MemoryHandle handle;
  std::uint32_t number = 0;  ///< of the buffer that is added or removed; 0: none
  std::int32_t code = 0;     ///< of the Status of this rank
};

}  // namespace

/// Maps what the ranks of the node offer: all of it, or nothing and an error. `mapped` has an entry for each rank.
Status DeviceGroup::map_offers(std::span<const MemoryHandle> offers, const std::vector<bool>& has_offer,
                               std::vector<void*>& mapped) {
  std::vector<bool> givers(offers.size());
  for (std::size_t rank = 0; rank < offers.size(); ++rank) givers[rank] = has_offer[rank] && offers[rank].descriptor >= 0;
  const auto own_rank = static_cast<std::size_t>(node_rank_);
  const Descriptor own(givers[own_rank] ? offers[own_rank].descriptor : -1);
  std::vector<Descriptor> descriptors(offers.size());
  if (std::find(givers.begin(), givers.end(), true) != givers.end()) {
    auto received = hand_around(*node_, own.get(), givers, timeout_);
    if (!received.ok()) return received.status();
    descriptors = std::move(*received);
  }
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (rank == own_rank || !has_offer[rank]) continue;
    MemoryHandle handle = offers[rank];
    if (givers[rank]) handle.descriptor = descriptors[rank].get();
    const auto imported = api_.import_memory(handle);
    if (!imported.ok())
      return {imported.status().code(), fmt::format("memory of rank {} of the node: {}", rank, imported.status().message())};
    mapped[rank] = *imported;
  }
  return {};
}

Status DeviceGroup::register_buffer(const void* buffer) {
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status closed = check_open(); !closed.ok()) return closed;
  Offer offer;
  Registered own;
  Status refused;
  std::uint32_t known = 0;
  if (route_ == Route::host)
    refused = Status(StatusCode::unsupported, "register_buffer: data goes through the host: " + why_host_);
  if (refused.ok()) refused = check_buffer("register_buffer: the buffer", buffer, 0);
  if (refused.ok()) {
    const auto memory = api_.describe_pointer(buffer);
    if (memory.ok()) own = {memory->allocation, memory->base, memory->bytes, 1};
    refused = memory.status();
  }
  if (refused.ok() && own.allocation == 0)
    refused = Status(StatusCode::unsupported, "register_buffer: the driver has no identifier for this memory");
  if (refused.ok()) {
    known = number_of(own.allocation);
    const auto free = std::find_if(registered_.begin() + 1, registered_.end(), [](auto& each) { return each.uses == 0; });
    if (known == 0 && free == registered_.end()) {
      refused = Status(StatusCode::unsupported,
                       fmt::format("register_buffer: {} allocations are registered; deregister one", registered_.size() - 1));
    } else if (known == 0) {
      offer.number = static_cast<std::uint32_t>(free - registered_.begin());
      const auto handle = api_.export_memory(own.base);
      if (handle.ok()) offer.handle = *handle;
      refused = handle.status();
    }
  }
  offer.code = static_cast<std::int32_t>(refused.code());
  std::vector<Offer> all(static_cast<std::size_t>(node_size_));
  if (Status status = node_->all_gather(&offer, all.data(), sizeof offer, DataType::uint8); !status.ok()) return status;
  std::vector<void*> mapped(all.size());
  std::vector<MemoryHandle> handles;
  std::vector<bool> has_offer;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    handles.push_back(all[rank].handle);
    has_offer.push_back(all[rank].number != 0 && all[rank].code == 0);
    if (all[rank].code != 0 && refused.ok())
      refused =
          Status(static_cast<StatusCode>(all[rank].code), fmt::format("register_buffer: failed on rank {} of the node", rank));
  }
  const Status imported = map_offers(handles, has_offer, mapped);
  if (refused.ok()) refused = imported;
  // In the end either all ranks have the buffer registered or none.
  if (Status status = everybody(refused, *all_, "register_buffer"); !status.ok()) {
    for (void* each : mapped) {
      if (each != nullptr) static_cast<void>(api_.forget_memory(each));
    }
    return status;
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (mapped[rank] != nullptr) set_mapping(static_cast<int>(rank), all[rank].number, mapped[rank]);
  }
  if (known != 0) {
    ++registered_[known].uses;
  } else {
    registered_[offer.number] = own;
    ++registrations_;
    words_->bases[node_rank_][offer.number] = own.base;
  }
  return {};
}

Status DeviceGroup::deregister_buffer(const void* buffer) {
  const std::scoped_lock calling(calls_mutex_);
  const OnDevice here(api_, device_);
  if (Status closed = check_open(); !closed.ok()) return closed;
  const auto* at = static_cast<const std::byte*>(buffer);
  // By its address where the allocation itself has been freed.
  const auto memory = api_.describe_pointer(buffer);
  std::uint32_t number = memory.ok() ? number_of(memory->allocation) : 0;
  for (std::size_t i = 1; i < registered_.size() && number == 0; ++i) {
    const Registered& each = registered_[i];
    if (each.uses != 0 && at >= each.base && at < each.base + each.bytes) number = static_cast<std::uint32_t>(i);
  }
  Status own;
  if (number == 0) own = Status(StatusCode::invalid_argument, "deregister_buffer: the buffer is not registered");
  // Peers read the buffer in calls that this rank has made, too.
  std::deque<std::shared_ptr<StreamCall>> open;
  {
    const std::scoped_lock lock(state_->mutex);
    open = state_->in_flight;
  }
  for (const auto& call : open) {
    if (call->messages == 0) static_cast<void>(wait_for(*call));
  }
  Offer offer;
  if (number != 0 && registered_[number].uses == 1) offer.number = number;
  std::vector<Offer> all(static_cast<std::size_t>(node_size_));
  if (Status status = node_->all_gather(&offer, all.data(), sizeof offer, DataType::uint8); !status.ok()) return status;
  if (Status status = everybody(own, *all_, "deregister_buffer"); !status.ok()) return status;
  if (--registered_[number].uses == 0) {
    registered_[number] = {};
    --registrations_;
  }
  for (int rank = 0; rank < node_size_; ++rank) {
    const std::uint32_t gone = all[static_cast<std::size_t>(rank)].number;
    if (gone == 0 || rank == node_rank_) continue;
    if (Status forgotten = api_.forget_memory(set_mapping(rank, gone, nullptr)); own.ok()) own = forgotten;
  }
  // When this returns no rank maps the buffer any more: it may be freed.
  return everybody(own, *all_, "deregister_buffer");
}

/// The number of the registered allocation, or 0.
std::uint32_t DeviceGroup::number_of(std::uint64_t allocation) const {
  for (std::size_t number = 1; number < registered_.size(); ++number) {
    if (registered_[number].uses != 0 && registered_[number].allocation == allocation)
      return static_cast<std::uint32_t>(number);
  }
  return 0;
}

/// Sets where buffer `number` of `rank` is mapped here; returns where it was mapped before.
void* DeviceGroup::set_mapping(int rank, std::uint32_t number, void* mapped) {
  words_->bases[rank][number] = static_cast<std::byte*>(mapped);
  return std::exchange(mapped_[static_cast<std::size_t>(rank)][number], mapped);
}

}  // namespace shoal::cuda
