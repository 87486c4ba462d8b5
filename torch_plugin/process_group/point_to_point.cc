// Calls between two ranks.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/device_streams.h"
#include "torch_plugin/process_group/process_group_shoal.h"
#include "torch_plugin/process_group/work_stream.h"

namespace shoal::torch {

using at::Tensor;

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::send(std::vector<Tensor>& tensors, int destination, int tag) {
  const Tensor& tensor = only_tensor("send", tensors);
  check_peer("send", destination, getRank(), getSize());
  const CallOptions how = call_options(c10d::kUnsetTimeout);
  const auto streams = streams_for_message("send", tensor, how);
  const Tensor source = contiguous(tensor, reach_of(streams));
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::SEND,
                       .name = "send",
                       .profiling_title = "shoal:send",
                       .inputs = {tensor},
                       .staging = {source},
                       .outputs = {},
                       .unpack = {},
                       .peer = {.rank = destination, .sending = true}};
  if (streams != nullptr && coalesced_)
    return start_with_block(streams, std::move(call),
                            StreamMessage::send(source.data_ptr(), movement.count, movement.type, destination, tag));
  return make(streams, std::move(call), how, &Communicator::send_async, &StreamCommunicator::send, source.data_ptr(),
              movement.count, movement.type, destination, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::receive(std::vector<Tensor>& tensors, c10d::OpType type, const char* title,
                                                          int peer, int tag) {
  const Tensor& tensor = only_tensor("recv", tensors);
  const CallOptions how = call_options(c10d::kUnsetTimeout);
  const auto streams = streams_for_message("recv", tensor, how);
  if (streams != nullptr && peer == kAnySource)
    refuse("recv", "the sender must be named, as messages on " + tensor.device().str() +
                       " go by streams in this group (device_id of init_process_group)");
  const Tensor buffer = contiguous_output(tensor, reach_of(streams));  // `tensor` itself if it is contiguous
  const Movement movement = to_movement(buffer);
  WorkShoal::Call call{.type = type,
                       .name = "recv",
                       .profiling_title = title,
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = copy_back(buffer, tensor),
                       .peer = {.rank = peer, .sending = false}};
  if (streams != nullptr && coalesced_)
    return start_with_block(streams, std::move(call),
                            StreamMessage::recv(buffer.data_ptr(), movement.count, movement.type, peer, tag));
  return make(streams, std::move(call), how, &Communicator::recv_async, &StreamCommunicator::recv, buffer.data_ptr(),
              movement.count, movement.type, peer, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::recv(std::vector<Tensor>& tensors, int source, int tag) {
  check_peer("recv", source, getRank(), getSize());
  return receive(tensors, c10d::OpType::RECV, "shoal:recv", source, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::recvAnysource(std::vector<Tensor>& tensors, int tag) {
  return receive(tensors, c10d::OpType::RECVANYSOURCE, "shoal:recvAnySource", kAnySource, tag);
}

/// Separate messages on a stream would run one after the other as blocking calls do, and ranks that all send first would wait
/// forever.
c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::start_with_block(const std::shared_ptr<DeviceStreams>& streams,
                                                                   WorkShoal::Call call, const StreamMessage& message) {
  auto work = c10::make_intrusive<WorkStream>(getRank(), call, streams);
  coalesced_->streams = streams;
  coalesced_->messages.push_back({std::move(call), work, message});
  coalesced_->works.push_back(work);
  return work;
}

void ProcessGroupShoal::start_messages(const Coalesced& block) {
  std::vector<StreamMessage> messages;
  for (const OnStream& each : block.messages) messages.push_back(each.message);
  const CallOptions how = call_options(c10d::kUnsetTimeout);
  start(block.streams, "batch_isend_irecv", block.messages, how,
        [&](StreamCommunicator& communicator, void* stream) { return communicator.exchange(messages, stream, how.timeout); });
}

}  // namespace shoal::torch
