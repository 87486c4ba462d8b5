// Calls that reduce.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/device_streams.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

namespace {
/// shoal averages integers only in host memory.
bool needs_host(const Reduction& reduction) { return reduction.op == ReduceOp::avg && !is_floating(reduction.type); }
}  // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce(std::vector<Tensor>& tensors,
                                                            const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors[0].defined() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  return all_reduce(only_tensor("all_reduce", tensors), options, "shoal:all_reduce");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::all_reduce(const Tensor& tensor, const c10d::AllreduceOptions& options,
                                                             const char* title) {
  const Reduction reduction = to_reduction("all_reduce", tensor, options.reduceOp);
  const CallOptions how = call_options(options.timeout);
  const auto streams = needs_host(reduction) ? nullptr : streams_for("all_reduce", tensor, how);
  const Tensor buffer = contiguous(scaled(tensor, options.reduceOp), reach_of(streams));
  WorkShoal::Call call{.type = c10d::OpType::ALLREDUCE,
                       .name = "all_reduce",
                       .profiling_title = title,
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = copy_back(buffer, tensor)};
  return make(streams, std::move(call), how, &Communicator::all_reduce_async, &StreamCommunicator::all_reduce,
              buffer.data_ptr(), buffer.data_ptr(), reduction.count, reduction.type, reduction.op);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce_coalesced(std::vector<Tensor>& tensors,
                                                                      const c10d::AllreduceCoalescedOptions& options) {
  check_same_type("all_reduce_coalesced", tensors);
  return all_of("all_reduce_coalesced", "shoal:all_reduce", tensors, tensors,
                [&](std::size_t i, const char* title) { return all_reduce(tensors[i], options, title); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::reduce(std::vector<Tensor>& tensors, const c10d::ReduceOptions& options) {
  const Tensor& tensor = only_tensor("reduce", tensors);
  check_root("reduce", options.rootRank, getSize(), options.rootTensor);
  const Reduction reduction = to_reduction("reduce", tensor, options.reduceOp);
  const CallOptions how = call_options(options.timeout);
  const auto streams = needs_host(reduction) ? nullptr : streams_for("reduce", tensor, how);
  const Tensor buffer = contiguous(scaled(tensor, options.reduceOp), reach_of(streams));
  const bool is_root = options.rootRank == getRank();
  WorkShoal::Call call{.type = c10d::OpType::REDUCE,
                       .name = "reduce",
                       .profiling_title = "shoal:reduce",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = {}};
  if (is_root) call.unpack = copy_back(buffer, tensor);
  return make(streams, std::move(call), how, &Communicator::reduce_async, &StreamCommunicator::reduce, buffer.data_ptr(),
              is_root ? buffer.data_ptr() : nullptr, reduction.count, reduction.type, reduction.op,
              static_cast<int>(options.rootRank));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::reduce_scatter(std::vector<Tensor>& outputs,
                                                                 std::vector<std::vector<Tensor>>& inputs,
                                                                 const c10d::ReduceScatterOptions& options) {
  const Tensor& output = only_tensor("reduce_scatter", outputs);
  const std::vector<Tensor> parts = only_list("reduce_scatter", "input", inputs, getSize());
  check_same_type("reduce_scatter", parts);
  check_like("reduce_scatter", output, 0, parts[static_cast<std::size_t>(getRank())]);
  const Reduction reduction = to_reduction("reduce_scatter", output, options.reduceOp);
  const CallOptions how = call_options(options.timeout);
  const auto streams = needs_host(reduction) ? nullptr : streams_for("reduce_scatter", output, how);
  std::vector<Tensor> sources;
  for (const Tensor& part : parts) sources.push_back(scaled(part, options.reduceOp));
  const Joined source(std::move(sources), reach_of(streams));
  source.pack();
  const Tensor result = contiguous_output(output, reach_of(streams));  // `output` itself if it is contiguous
  const std::vector<std::size_t> counts = source.counts(reduction.factor);
  WorkShoal::Call call{.type = c10d::OpType::REDUCE_SCATTER,
                       .name = "reduce_scatter",
                       .profiling_title = "shoal:reduce_scatter",
                       .inputs = parts,
                       .staging = concat(source.memory(), {result}),
                       .outputs = {output},
                       .unpack = copy_back(result, output)};
  if (are_equal(counts))
    return make(streams, std::move(call), how, &Communicator::reduce_scatter_async, &StreamCommunicator::reduce_scatter,
                source.data(), result.data_ptr(), counts[0], reduction.type, reduction.op);
  return make(streams, std::move(call), how, &Communicator::reduce_scatter_v_async, &StreamCommunicator::reduce_scatter_v,
              source.data(), result.data_ptr(), counts, reduction.type, reduction.op);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::_reduce_scatter_base(Tensor& output, Tensor& input,
                                                                       const c10d::ReduceScatterOptions& options) {
  check_same_type("reduce_scatter_tensor", {input, output});
  return reduce_scatter_from(output, input, options, "shoal:_reduce_scatter_base");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::reduce_scatter_from(const Tensor& output, const Tensor& input,
                                                                      const c10d::ReduceScatterOptions& options,
                                                                      const char* title) {
  constexpr const char* kCall = "reduce_scatter_tensor";
  check_shares(kCall, "input tensor must be the same size as output size times world size", "input", input, output, getSize());
  const Reduction reduction = to_reduction(kCall, output, options.reduceOp);
  const CallOptions how = call_options(options.timeout);
  const auto streams = needs_host(reduction) ? nullptr : streams_for(kCall, output, how);
  const Tensor source = contiguous(scaled(input, options.reduceOp), reach_of(streams));
  const Tensor result = contiguous_output(output, reach_of(streams));  // `output` itself if it is contiguous
  WorkShoal::Call call{.type = c10d::OpType::_REDUCE_SCATTER_BASE,
                       .name = kCall,
                       .profiling_title = title,
                       .inputs = {input},
                       .staging = {source, result},
                       .outputs = {output},
                       .unpack = copy_back(result, output)};
  return make(streams, std::move(call), how, &Communicator::reduce_scatter_async, &StreamCommunicator::reduce_scatter,
              source.data_ptr(), result.data_ptr(), reduction.count, reduction.type, reduction.op);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::reduce_scatter_tensor_coalesced(std::vector<Tensor>& outputs,
                                                                                  std::vector<Tensor>& inputs,
                                                                                  const c10d::ReduceScatterOptions& options) {
  constexpr const char* kCall = "reduce_scatter_tensor_coalesced";
  check_pairs(kCall, outputs, inputs);
  return all_of(kCall, "shoal:reduce_scatter_tensor_coalesced", inputs, outputs,
                [&](std::size_t i, const char* title) { return reduce_scatter_from(outputs[i], inputs[i], options, title); });
}

}  // namespace shoal::torch
