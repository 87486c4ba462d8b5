// The public class over DeviceGroup.
#include <utility>
#include <vector>

#include "src/cuda/cuda_api.h"
#include "src/cuda/device_group.h"
#include "src/runtime/call_group.h"

namespace shoal {

using cuda::DeviceGroup;

Status cuda_available() { return cuda::load_cuda_api().status(); }

Status cuda_stream_takes_calls(void* stream) {
  const auto api = cuda::load_cuda_api();
  if (!api.ok()) return api.status();
  const auto capturing = (*api)->is_capturing(stream);
  if (!capturing.ok()) return capturing.status();
  if (!*capturing) return {};
  return {StatusCode::unsupported,
          "the stream is being captured into a CUDA graph, which shoal does not support; make the call outside of the capture"};
}

bool StreamWork::is_completed() const {
  if (call_ == nullptr) return true;
  const std::scoped_lock lock(call_->state->mutex);
  call_->state->look_at(*call_);
  return call_->ended;
}

Status StreamWork::wait_on(void* stream) {
  if (call_ == nullptr) return {};
  {
    const std::scoped_lock lock(call_->state->mutex);
    if (call_->ended && !call_->outcome.ok()) return call_->outcome;
  }
  return call_->state->api->wait(stream, call_->event);
}

Status StreamWork::wait() { return call_ == nullptr ? Status() : cuda::wait_for(*call_); }

Status StreamWork::status() const {
  if (call_ == nullptr) return {};
  const std::scoped_lock lock(call_->state->mutex);
  call_->state->look_at(*call_);
  return call_->ended ? call_->outcome : Status();
}

std::uint64_t StreamWork::sequence() const noexcept { return call_ == nullptr ? 0 : call_->sequence; }

StreamCommunicator::StreamCommunicator(std::unique_ptr<DeviceGroup> group) noexcept : group_(std::move(group)) {}
StreamCommunicator::~StreamCommunicator() = default;

std::unique_ptr<StreamCommunicator> DeviceGroup::wrap(std::unique_ptr<DeviceGroup> group) {
  return std::unique_ptr<StreamCommunicator>(new StreamCommunicator(std::move(group)));
}

Result<std::unique_ptr<StreamCommunicator>> StreamCommunicator::create(Communicator& communicator, StreamOptions options) {
  if (CallGroup::open()) return internal::waits_in_group("StreamCommunicator::create");
  const auto api = cuda::load_cuda_api();
  if (!api.ok()) return api.status();
  auto group = DeviceGroup::create(**api, communicator, options);
  if (!group.ok()) return group.status();
  return DeviceGroup::wrap(std::move(*group));
}

Result<StreamWork> StreamCommunicator::submit(const Request& request, void* stream, Timeout timeout) {
  auto call = group_->call(request, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Result<StreamWork> StreamCommunicator::exchange(std::span<const StreamMessage> messages, void* stream, Timeout timeout) {
  std::vector<Request> requests;
  for (const StreamMessage& m : messages) {
    requests.push_back(m.is_send ? Request::send(m.buffer, m.count, m.type, m.peer, m.tag)
                                 : Request::recv(m.buffer, m.count, m.type, m.peer, m.tag));
  }
  auto call = group_->exchange(requests, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Status StreamCommunicator::register_buffer(const void* buffer) { return group_->register_buffer(buffer); }
void StreamCommunicator::leave_within(std::chrono::milliseconds limit) { group_->leave_within(limit); }
Status StreamCommunicator::deregister_buffer(const void* buffer) { return group_->deregister_buffer(buffer); }
void StreamCommunicator::abort(const std::string& reason) { group_->abort(reason); }
Status StreamCommunicator::status() const { return group_->status(); }
std::string StreamCommunicator::route() const { return group_->route(); }

}  // namespace shoal
