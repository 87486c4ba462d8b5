// The public class over DeviceGroup.
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/cuda/cuda_api.h"
#include "src/cuda/device_group.h"
#include "src/runtime/call_group.h"

namespace shoal {
namespace {

using cuda::DeviceGroup;
using internal::CommunicatorImpl;
using Call = CommunicatorImpl::Call;

/// The sum of the counts, limited to SIZE_MAX: the check of the call refuses that.
std::size_t sum_of_counts(StreamCommunicator::Counts counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum = count > ~sum ? ~std::size_t{0} : sum + count;
  return sum;
}

using Started = Result<std::shared_ptr<cuda::StreamCall>>;

/// Starts a call with `lists` times one count for each rank.
Started start_v(DeviceGroup& group, Call call, StreamCommunicator::Counts counts, std::size_t lists, void* stream,
                StreamCommunicator::Timeout timeout) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (counts.size() != lists * ranks) {
    return Status(StatusCode::invalid_argument, fmt::format("{}_v: {} counts for {} ranks; one for each rank is needed",
                                                            to_string(call.collective.kind), counts.size(), ranks));
  }
  call.collective.counts = counts;
  call.collective.count = sum_of_counts(counts.first(ranks));
  return group.call(call, stream, timeout);
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

Result<StreamWork> StreamCommunicator::work_of(Result<std::shared_ptr<cuda::StreamCall>> call) {
  if (!call.ok()) return call.status();
  return StreamWork(std::move(*call));
}

Result<std::unique_ptr<StreamCommunicator>> StreamCommunicator::create(Communicator& communicator, StreamOptions options) {
  if (CallGroup::open()) return internal::waits_in_group("StreamCommunicator::create");
  const auto api = cuda::load_cuda_api();
  if (!api.ok()) return api.status();
  auto group = DeviceGroup::create(**api, communicator, options);
  if (!group.ok()) return group.status();
  return DeviceGroup::wrap(std::move(*group));
}

Result<StreamWork> StreamCommunicator::all_reduce(const void* input, void* output, std::size_t count, DataType type,
                                                  ReduceOp op, void* stream, Timeout timeout) {
  return work_of(group_->call({{CollectiveKind::all_reduce, count, type, op, 0}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::broadcast(void* buffer, std::size_t count, DataType type, int root, void* stream,
                                                 Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::broadcast, count, type, ReduceOp::sum, root}, nullptr, buffer, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::all_gather(const void* input, void* output, std::size_t count, DataType type,
                                                  void* stream, Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::all_gather, count, type, ReduceOp::sum, 0}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::all_gather_v(const void* input, void* output, Counts counts, DataType type, void* stream,
                                                    Timeout timeout) {
  return work_of(start_v(*group_, {{CollectiveKind::all_gather, 0, type, ReduceOp::sum, 0}, input, output, false}, counts, 1,
                         stream, timeout));
}
Result<StreamWork> StreamCommunicator::reduce_scatter(const void* input, void* output, std::size_t count, DataType type,
                                                      ReduceOp op, void* stream, Timeout timeout) {
  return work_of(group_->call({{CollectiveKind::reduce_scatter, count, type, op, 0}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::reduce_scatter_v(const void* input, void* output, Counts counts, DataType type,
                                                        ReduceOp op, void* stream, Timeout timeout) {
  return work_of(
      start_v(*group_, {{CollectiveKind::reduce_scatter, 0, type, op, 0}, input, output, false}, counts, 1, stream, timeout));
}
Result<StreamWork> StreamCommunicator::reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                              int root, void* stream, Timeout timeout) {
  return work_of(group_->call({{CollectiveKind::reduce, count, type, op, root}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::gather(const void* input, void* output, std::size_t count, DataType type, int root,
                                              void* stream, Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::gather, count, type, ReduceOp::sum, root}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::gather_v(const void* input, void* output, Counts counts, DataType type, int root,
                                                void* stream, Timeout timeout) {
  return work_of(start_v(*group_, {{CollectiveKind::gather, 0, type, ReduceOp::sum, root}, input, output, false}, counts, 1,
                         stream, timeout));
}
Result<StreamWork> StreamCommunicator::scatter(const void* input, void* output, std::size_t count, DataType type, int root,
                                               void* stream, Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::scatter, count, type, ReduceOp::sum, root}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::scatter_v(const void* input, void* output, Counts counts, DataType type, int root,
                                                 void* stream, Timeout timeout) {
  return work_of(start_v(*group_, {{CollectiveKind::scatter, 0, type, ReduceOp::sum, root}, input, output, false}, counts, 1,
                         stream, timeout));
}
Result<StreamWork> StreamCommunicator::all_to_all(const void* input, void* output, std::size_t count, DataType type,
                                                  void* stream, Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::all_to_all, count, type, ReduceOp::sum, 0}, input, output, false}, stream, timeout));
}
Result<StreamWork> StreamCommunicator::all_to_all_v(const void* input, Counts send_counts, void* output, Counts receive_counts,
                                                    DataType type, void* stream, Timeout timeout) {
  std::vector<std::size_t> both(send_counts.begin(), send_counts.end());
  both.insert(both.end(), receive_counts.begin(), receive_counts.end());
  if (send_counts.size() != receive_counts.size()) both.clear();  // refused below
  return work_of(start_v(*group_, {{CollectiveKind::all_to_all, 0, type, ReduceOp::sum, 0}, input, output, false}, both, 2,
                         stream, timeout));
}
Result<StreamWork> StreamCommunicator::barrier(void* stream, Timeout timeout) {
  return work_of(
      group_->call({{CollectiveKind::barrier, 0, DataType::uint8, ReduceOp::sum, 0}, nullptr, nullptr, true}, stream, timeout));
}

Result<StreamWork> StreamCommunicator::send(const void* buffer, std::size_t count, DataType type, int peer, int tag,
                                            void* stream, Timeout timeout) {
  const StreamMessage message = StreamMessage::send(buffer, count, type, peer, tag);
  return exchange({&message, 1}, stream, timeout);
}
Result<StreamWork> StreamCommunicator::recv(void* buffer, std::size_t count, DataType type, int peer, int tag, void* stream,
                                            Timeout timeout) {
  const StreamMessage message = StreamMessage::recv(buffer, count, type, peer, tag);
  return exchange({&message, 1}, stream, timeout);
}
Result<StreamWork> StreamCommunicator::exchange(std::span<const StreamMessage> messages, void* stream, Timeout timeout) {
  return work_of(group_->exchange(messages, stream, timeout));
}

Status StreamCommunicator::register_buffer(const void* buffer) { return group_->register_buffer(buffer); }
void StreamCommunicator::leave_within(std::chrono::milliseconds limit) { group_->leave_within(limit); }
Status StreamCommunicator::deregister_buffer(const void* buffer) { return group_->deregister_buffer(buffer); }
void StreamCommunicator::abort(const std::string& reason) { group_->abort(reason); }
Status StreamCommunicator::status() const { return group_->status(); }
std::string StreamCommunicator::route() const { return group_->route(); }

}  // namespace shoal
