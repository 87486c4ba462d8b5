// Calls that move elements unchanged.
#include <algorithm>
#include <utility>

#include <ATen/ops/empty_like.h>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/device_streams.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::broadcast(std::vector<Tensor>& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const Tensor& tensor = only_tensor("broadcast", tensors);
  check_root("broadcast", options.rootRank, getSize(), options.rootTensor);
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for("broadcast", tensor, how);
  const Reach reach = reach_of(streams);
  const Tensor buffer = options.rootRank == getRank() ? contiguous(tensor, reach) : contiguous_output(tensor, reach);
  const Movement movement = to_movement(buffer);
  WorkShoal::Call call{.type = c10d::OpType::BROADCAST,
                       .name = "broadcast",
                       .profiling_title = "shoal:broadcast",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = copy_back(buffer, tensor)};
  return make(streams, std::move(call), how, &Communicator::broadcast_async, &StreamCommunicator::broadcast, buffer.data_ptr(),
              movement.count, movement.type, static_cast<int>(options.rootRank));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather(std::vector<std::vector<Tensor>>& outputs,
                                                            std::vector<Tensor>& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const Tensor& input = only_tensor("all_gather", inputs);
  const std::vector<Tensor> parts = only_list("all_gather", "output", outputs, getSize());
  check_parts("all_gather", parts, getRank(), input);
  return all_gather(parts, input, options, "shoal:all_gather");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::all_gather(const std::vector<Tensor>& parts, const Tensor& input,
                                                             const c10d::AllgatherOptions& options, const char* title) {
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for("all_gather", input, how);
  const Tensor source = contiguous(input, reach_of(streams));
  const Joined gathered(parts, reach_of(streams));
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::ALLGATHER,
                       .name = "all_gather",
                       .profiling_title = title,
                       .inputs = {input},
                       .staging = concat({source}, gathered.memory()),
                       .outputs = parts,
                       .unpack = copy_back(gathered)};
  const std::vector<std::size_t> counts = gathered.counts(movement.factor);
  if (are_equal(counts))
    return make(streams, std::move(call), how, &Communicator::all_gather_async, &StreamCommunicator::all_gather,
                source.data_ptr(), gathered.data(), movement.count, movement.type);
  return make(streams, std::move(call), how, &Communicator::all_gather_v_async, &StreamCommunicator::all_gather_v,
              source.data_ptr(), gathered.data(), counts, movement.type);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::_allgather_base(Tensor& output, Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  check_same_type("all_gather_into_tensor", {input, output});
  return all_gather_into(output, input, options, "shoal:_all_gather_base");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::all_gather_into(const Tensor& output, const Tensor& input,
                                                                  const c10d::AllgatherOptions& options, const char* title) {
  constexpr const char* kCall = "all_gather_into_tensor";
  check_shares(kCall, "output tensor size must be equal to world_size times input tensor size", "output", output, input,
               getSize());
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for(kCall, input, how);
  const Tensor source = contiguous(input, reach_of(streams));
  const Tensor gathered = contiguous_output(output, reach_of(streams));  // `output` itself if it is contiguous
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::_ALLGATHER_BASE,
                       .name = kCall,
                       .profiling_title = title,
                       .inputs = {input},
                       .staging = {source, gathered},
                       .outputs = {output},
                       .unpack = copy_back(gathered, output)};
  return make(streams, std::move(call), how, &Communicator::all_gather_async, &StreamCommunicator::all_gather,
              source.data_ptr(), gathered.data_ptr(), movement.count, movement.type);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather_coalesced(std::vector<std::vector<Tensor>>& outputs,
                                                                      std::vector<Tensor>& inputs,
                                                                      const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_coalesced";
  if (inputs.empty()) refuse(kCall, "requires non-empty input tensor list");
  if (outputs.size() != static_cast<std::size_t>(getSize())) refuse(kCall, "output lists should be equal to world size");
  for (const std::vector<Tensor>& of_rank : outputs) {
    if (of_rank.size() != inputs.size()) refuse(kCall, "invalid output size: every rank's list needs a tensor for each input");
  }
  std::vector<std::vector<Tensor>> parts_of(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (const std::vector<Tensor>& of_rank : outputs) parts_of[i].push_back(of_rank[i]);
    parts_of[i] = unwrapped(std::move(parts_of[i]));
    check_tensor(kCall, inputs[i]);
    check_device(kCall, inputs[i], i, inputs[0]);
    check_parts(kCall, parts_of[i], getRank(), inputs[i]);
  }
  std::vector<Tensor> results;
  for (const std::vector<Tensor>& of_rank : outputs) results.insert(results.end(), of_rank.begin(), of_rank.end());
  return all_of(kCall, "shoal:all_gather", inputs, std::move(results),
                [&](std::size_t i, const char* title) { return all_gather(parts_of[i], inputs[i], options, title); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather_into_tensor_coalesced(std::vector<Tensor>& outputs,
                                                                                  std::vector<Tensor>& inputs,
                                                                                  const c10d::AllgatherOptions& options) {
  constexpr const char* kCall = "all_gather_into_tensor_coalesced";
  check_pairs(kCall, outputs, inputs);
  return all_of(kCall, "shoal:all_gather_into_tensor_coalesced", inputs, outputs,
                [&](std::size_t i, const char* title) { return all_gather_into(outputs[i], inputs[i], options, title); });
}

namespace {
/// Counts for an all_to_all_v that moves data only between this rank and the root. Only the root knows the sizes of the other
/// ranks, so gather_v and scatter_v, in which every rank must know all sizes, cannot be used.
std::vector<std::size_t> with_root_only(int root, int size, std::size_t count) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(size));
  counts[static_cast<std::size_t>(root)] = count;
  return counts;
}

/// On streams every gather and scatter needs equal shares, because an all_to_all_v goes through host memory there.
void check_equal_on_stream(const char* call, const std::vector<std::size_t>& counts, const Tensor& own) {
  if (!are_equal(counts))
    refuse(call, "tensors on " + own.device().str() + " must have one size in this call; all_gather takes several");
}

/// At the root: whether its own tensor lies in the memory of all parts. Such a call would be in place, which all_to_all does
/// not support.
bool lies_in(const Joined& parts, const Tensor& own) {
  const std::vector<Tensor> memory = parts.memory();
  return std::ranges::any_of(memory, [&](const Tensor& each) { return each.storage().is_alias_of(own.storage()); });
}
}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::gather(std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
                                                         const c10d::GatherOptions& options) {
  const Tensor& input = only_tensor("gather", inputs);
  check_root("gather", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  const std::vector<Tensor> parts = list_of_root("gather", "output", outputs, root == getRank(), getSize(), getRank(), input);
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for("gather", input, how);
  const Joined gathered(parts, reach_of(streams));
  Tensor source = contiguous(input, reach_of(streams));
  if (streams == nullptr && lies_in(gathered, source)) source = source.detach().clone();
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::GATHER,
                       .name = "gather",
                       .profiling_title = "shoal:gather",
                       .inputs = {input},
                       .staging = concat({source}, gathered.memory()),
                       .outputs = parts,
                       .unpack = copy_back(gathered)};
  std::vector<std::size_t> counts = gathered.counts(movement.factor);
  if (streams != nullptr) {
    check_equal_on_stream("gather", counts, input);
    return make(streams, std::move(call), how, &Communicator::gather_async, &StreamCommunicator::gather, source.data_ptr(),
                gathered.data(), movement.count, movement.type, root);
  }
  counts.resize(static_cast<std::size_t>(getSize()));  // except at the root: nothing from any rank
  const std::vector<std::size_t> to_root = with_root_only(root, getSize(), movement.count);
  return start(std::move(call),
               communicator_->all_to_all_v_async(source.data_ptr(), to_root, gathered.data(), counts, movement.type, how), how);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::scatter(std::vector<Tensor>& outputs,
                                                          std::vector<std::vector<Tensor>>& inputs,
                                                          const c10d::ScatterOptions& options) {
  const Tensor& output = only_tensor("scatter", outputs);
  check_root("scatter", options.rootRank, getSize());
  const int root = static_cast<int>(options.rootRank);
  const std::vector<Tensor> parts = list_of_root("scatter", "input", inputs, root == getRank(), getSize(), getRank(), output);
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for("scatter", output, how);
  const Joined source(parts, reach_of(streams));
  source.pack();
  Tensor result = contiguous_output(output, reach_of(streams));  // `output` itself if it is contiguous
  if (streams == nullptr && lies_in(source, result)) result = at::empty_like(result);
  const Movement movement = to_movement(result);
  WorkShoal::Call call{.type = c10d::OpType::SCATTER,
                       .name = "scatter",
                       .profiling_title = "shoal:scatter",
                       .inputs = parts,
                       .staging = concat(source.memory(), {result}),
                       .outputs = {output},
                       .unpack = copy_back(result, output)};
  std::vector<std::size_t> counts = source.counts(movement.factor);
  if (streams != nullptr) {
    check_equal_on_stream("scatter", counts, output);
    return make(streams, std::move(call), how, &Communicator::scatter_async, &StreamCommunicator::scatter, source.data(),
                result.data_ptr(), movement.count, movement.type, root);
  }
  counts.resize(static_cast<std::size_t>(getSize()));  // except at the root: nothing to any rank
  const std::vector<std::size_t> from_root = with_root_only(root, getSize(), movement.count);
  return start(std::move(call),
               communicator_->all_to_all_v_async(source.data(), counts, result.data_ptr(), from_root, movement.type, how), how);
}

namespace {
/// Elements for each rank from c10d's split sizes, which count rows; empty means equal shares.
std::vector<std::size_t> elements_per_rank(const char* which, const Tensor& tensor, const std::vector<std::int64_t>& splits,
                                           int size, std::size_t factor) {
  constexpr const char* kCall = "all_to_all_single";
  const std::int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const std::int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  std::vector<std::int64_t> wanted = splits;
  if (wanted.empty()) {
    if (rows % size != 0)
      refuse(kCall, std::string("Tensor's dim 0 does not divide equally across group size: the ") + which + " has " +
                        std::to_string(rows) + " rows for " + std::to_string(size) + " ranks");
    wanted.assign(static_cast<std::size_t>(size), rows / size);
  }
  if (wanted.size() != static_cast<std::size_t>(size))
    refuse(kCall, "Number of tensor splits not equal to group size: " + std::to_string(wanted.size()) + " for the " + which +
                      ", " + std::to_string(size) + " ranks");
  std::int64_t total = 0;
  std::vector<std::size_t> elements;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    const std::int64_t split = wanted[rank];
    if (split < 0)
      refuse(kCall,
             "a negative split size at index " + std::to_string(rank) + " of the " + which + ": " + std::to_string(split));
    total += split;
    elements.push_back(static_cast<std::size_t>(split * row) * factor);
  }
  if (total != rows)
    refuse(kCall, "Split sizes doesn't match total dim 0 size: the " + std::string(which) + "'s sizes add up to " +
                      std::to_string(total) + ", its rows are " + std::to_string(rows));
  return elements;
}
}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::alltoall_base(Tensor& output, Tensor& input,
                                                                std::vector<std::int64_t>& output_splits,
                                                                std::vector<std::int64_t>& input_splits,
                                                                const c10d::AllToAllOptions& options) {
  check_same_type("all_to_all_single", {input, output});
  const Movement movement = to_movement(input);
  const std::vector<std::size_t> send_counts = elements_per_rank("input", input, input_splits, getSize(), movement.factor);
  const std::vector<std::size_t> receive_counts =
      elements_per_rank("output", output, output_splits, getSize(), movement.factor);
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for("all_to_all_single", input, how);
  const Tensor source = contiguous(input, reach_of(streams));
  const Tensor result = contiguous_output(output, reach_of(streams));  // `output` itself if it is contiguous
  WorkShoal::Call call{.type = c10d::OpType::ALLTOALL_BASE,
                       .name = "all_to_all_single",
                       .profiling_title = "shoal:all_to_all",
                       .inputs = {input},
                       .staging = {source, result},
                       .outputs = {output},
                       .unpack = copy_back(result, output)};
  if (input_splits.empty() && output_splits.empty())
    return make(streams, std::move(call), how, &Communicator::all_to_all_async, &StreamCommunicator::all_to_all,
                source.data_ptr(), result.data_ptr(), send_counts[0], movement.type);
  return make(streams, std::move(call), how, &Communicator::all_to_all_v_async, &StreamCommunicator::all_to_all_v,
              source.data_ptr(), send_counts, result.data_ptr(), receive_counts, movement.type);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::alltoall(std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
                                                           const c10d::AllToAllOptions& options) {
  constexpr const char* kCall = "all_to_all";
  const auto size = static_cast<std::size_t>(getSize());
  if (outputs.size() != size || inputs.size() != size)
    refuse(kCall, "list sizes should equal to group size: " + std::to_string(inputs.size()) + " inputs, " +
                      std::to_string(outputs.size()) + " outputs, " + std::to_string(size) + " ranks");
  check_pairs(kCall, outputs, inputs);
  check_same_type(kCall, inputs);
  const Movement movement = to_movement(inputs[0]);
  const CallOptions how = call_options(options.timeout);
  const auto streams = streams_for(kCall, inputs[0], how);
  const Joined source(inputs, reach_of(streams));
  source.pack();
  const Joined result(outputs, reach_of(streams));
  WorkShoal::Call call{.type = c10d::OpType::ALLTOALL,
                       .name = kCall,
                       .profiling_title = "shoal:all_to_all",
                       .inputs = inputs,
                       .staging = concat(source.memory(), result.memory()),
                       .outputs = outputs,
                       .unpack = copy_back(result)};
  return make(streams, std::move(call), how, &Communicator::all_to_all_v_async, &StreamCommunicator::all_to_all_v,
              source.data(), source.counts(movement.factor), result.data(), result.counts(movement.factor), movement.type);
}

}  // namespace shoal::torch
