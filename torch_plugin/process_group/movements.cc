// Calls that move elements unchanged.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::broadcast(std::vector<Tensor>& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const Tensor& tensor = only_tensor("broadcast", tensors);
  check_root("broadcast", options.rootRank, getSize());
  if (options.rootTensor != 0) refuse("broadcast", "invalid root tensor: " + std::to_string(options.rootTensor));
  const Tensor buffer = dense(tensor);
  const Movement movement = to_movement(buffer);
  const CallOptions how = call_options(options.timeout);
  WorkShoal::Call call{.type = c10d::OpType::BROADCAST,
                       .name = "broadcast",
                       .profiling_title = "shoal:broadcast",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = {}};
  if (!buffer.is_same(tensor)) call.unpack = [buffer, tensor]() mutable { tensor.copy_(buffer); };
  const int root = static_cast<int>(options.rootRank);
  return start(std::move(call), communicator_->broadcast_async(buffer.data_ptr(), movement.count, movement.type, root, how),
               how);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather(std::vector<std::vector<Tensor>>& outputs,
                                                            std::vector<Tensor>& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const Tensor& input = only_tensor("all_gather", inputs);
  const std::vector<Tensor>& parts = only_list("all_gather", "output", outputs, getSize());
  for (std::size_t rank = 0; rank < parts.size(); ++rank) check_like("all_gather", parts[rank], rank, input);
  const Tensor source = contiguous(input);
  const Joined gathered(parts);
  const Movement movement = to_movement(source);
  const CallOptions how = call_options(options.timeout);
  WorkShoal::Call call{.type = c10d::OpType::ALLGATHER,
                       .name = "all_gather",
                       .profiling_title = "shoal:all_gather",
                       .inputs = {input},
                       .staging = {source},
                       .outputs = parts,
                       .unpack = {}};
  if (gathered.copies()) call.unpack = [gathered] { gathered.unpack(); };
  return start(std::move(call),
               communicator_->all_gather_async(source.data_ptr(), gathered.data(), movement.count, movement.type, how), how);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::_allgather_base(Tensor& output, Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor";
  check_same_type(kCall, {input, output});
  if (output.numel() != input.numel() * getSize())
    refuse(kCall, "output tensor size must be equal to world_size times input tensor size: the output has " +
                      std::to_string(output.numel()) + " elements; " + std::to_string(getSize()) + " ranks with " +
                      std::to_string(input.numel()) + " each need " + std::to_string(input.numel() * getSize()));
  const Tensor source = contiguous(input);
  const Tensor gathered = contiguous(output);  // itself where it is contiguous
  const Movement movement = to_movement(source);
  const CallOptions how = call_options(options.timeout);
  WorkShoal::Call call{.type = c10d::OpType::_ALLGATHER_BASE,
                       .name = kCall,
                       .profiling_title = "shoal:_all_gather_base",
                       .inputs = {input},
                       .staging = {source, gathered},
                       .outputs = {output},
                       .unpack = {}};
  if (!gathered.is_same(output)) call.unpack = [gathered, output]() mutable { output.copy_(gathered); };
  return start(std::move(call),
               communicator_->all_gather_async(source.data_ptr(), gathered.data_ptr(), movement.count, movement.type, how),
               how);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather_coalesced(std::vector<std::vector<Tensor>>& outputs,
                                                                      std::vector<Tensor>& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_coalesced";
  if (inputs.empty()) refuse(kCall, "requires non-empty input tensor list");
  if (outputs.size() != static_cast<std::size_t>(getSize())) refuse(kCall, "output lists should be equal to world size");
  for (const std::vector<Tensor>& of_rank : outputs) {
    if (of_rank.size() != inputs.size()) refuse(kCall, "invalid output size: every rank's list needs a tensor for each input");
    for (std::size_t i = 0; i < inputs.size(); ++i) check_like(kCall, of_rank[i], i, inputs[i]);
  }
  std::vector<Tensor> results;
  return all_of(kCall, inputs.size(), results, [&](std::size_t i) {
    std::vector<std::vector<Tensor>> parts(1);
    for (const std::vector<Tensor>& of_rank : outputs) parts[0].push_back(of_rank[i]);
    results.insert(results.end(), parts[0].begin(), parts[0].end());
    std::vector<Tensor> input{inputs[i]};
    return allgather(parts, input, options);
  });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather_into_tensor_coalesced(std::vector<Tensor>& outputs,
                                                                                  std::vector<Tensor>& inputs,
                                                                                  const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor_coalesced";
  check_pairs(kCall, outputs, inputs);
  return all_of(kCall, inputs.size(), outputs, [&](std::size_t i) { return _allgather_base(outputs[i], inputs[i], options); });
}

}  // namespace shoal::torch
