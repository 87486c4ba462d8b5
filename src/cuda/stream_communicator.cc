// The public face of DeviceGroup.
#include <utility>

#include "src/cuda/cuda_api.h"
#include "src/cuda/device_group.h"

namespace shoal {
namespace {

using cuda::DeviceGroup;
using cuda::Signature;

Signature signature_of(CollectiveKind kind, std::size_t count, DataType type, ReduceOp op = ReduceOp::sum,
                       std::uint32_t root = 0) {
  return {count, kind, type, op, root};
}

}  // namespace

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
  const auto api = cuda::load_cuda_api();
  if (!api.ok()) return api.status();
  auto group = DeviceGroup::create(**api, communicator, options);
  if (!group.ok()) return group.status();
  return DeviceGroup::wrap(std::move(*group));
}

Result<StreamWork> StreamCommunicator::all_reduce(const void* input, void* output, std::size_t count, DataType type,
                                                  ReduceOp op, void* stream, std::optional<std::chrono::milliseconds> timeout) {
  auto call = group_->call(signature_of(CollectiveKind::all_reduce, count, type, op), input, output, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Result<StreamWork> StreamCommunicator::reduce_scatter(const void* input, void* output, std::size_t count, DataType type,
                                                      ReduceOp op, void* stream,
                                                      std::optional<std::chrono::milliseconds> timeout) {
  auto call = group_->call(signature_of(CollectiveKind::reduce_scatter, count, type, op), input, output, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Result<StreamWork> StreamCommunicator::all_gather(const void* input, void* output, std::size_t count, DataType type,
                                                  void* stream, std::optional<std::chrono::milliseconds> timeout) {
  auto call = group_->call(signature_of(CollectiveKind::all_gather, count, type), input, output, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Result<StreamWork> StreamCommunicator::broadcast(void* buffer, std::size_t count, DataType type, int root, void* stream,
                                                 std::optional<std::chrono::milliseconds> timeout) {
  const auto from = static_cast<std::uint32_t>(root);  // check() refuses what is no rank
  auto call =
      group_->call(signature_of(CollectiveKind::broadcast, count, type, ReduceOp::sum, from), buffer, buffer, stream, timeout);
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Status StreamCommunicator::register_buffer(const void* buffer) { return group_->register_buffer(buffer); }
void StreamCommunicator::leave_within(std::chrono::milliseconds limit) { group_->leave_within(limit); }
void StreamCommunicator::abort(const std::string& reason) { group_->abort(reason); }
Status StreamCommunicator::status() const { return group_->status(); }
std::string StreamCommunicator::route() const { return group_->route(); }

}  // namespace shoal
