// Calls between two ranks.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::send(std::vector<Tensor>& tensors, int destination, int tag) {
  const Tensor& tensor = only_tensor("send", tensors);
  check_peer("send", destination, getRank(), getSize());
  const Tensor source = contiguous(tensor);
  const Movement movement = to_movement(source);
  const CallOptions how = call_options(c10d::kUnsetTimeout);
  return start({.type = c10d::OpType::SEND,
                .name = "send",
                .profiling_title = "shoal:send",
                .inputs = {tensor},
                .staging = {source},
                .outputs = {},
                .unpack = {}},
               communicator_->send_async(source.data_ptr(), movement.count, movement.type, destination, tag, how), how,
               {.rank = destination, .sending = true});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::receive(std::vector<Tensor>& tensors, c10d::OpType type, const char* title,
                                                          int peer, int tag) {
  const Tensor& tensor = only_tensor("recv", tensors);
  const Tensor buffer = contiguous_output(tensor);  // itself where it is contiguous
  const Movement movement = to_movement(buffer);
  const CallOptions how = call_options(c10d::kUnsetTimeout);
  WorkShoal::Call call{.type = type,
                       .name = "recv",
                       .profiling_title = title,
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = copy_back(buffer, tensor)};
  return start(std::move(call), communicator_->recv_async(buffer.data_ptr(), movement.count, movement.type, peer, tag, how),
               how, {.rank = peer, .sending = false});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::recv(std::vector<Tensor>& tensors, int source, int tag) {
  check_peer("recv", source, getRank(), getSize());
  return receive(tensors, c10d::OpType::RECV, "shoal:recv", source, tag);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::recvAnysource(std::vector<Tensor>& tensors, int tag) {
  return receive(tensors, c10d::OpType::RECVANYSOURCE, "shoal:recvAnySource", kAnySource, tag);
}

}  // namespace shoal::torch
