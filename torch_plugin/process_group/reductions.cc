// Calls that reduce.
#include <utility>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::torch {

using at::Tensor;

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce(std::vector<Tensor>& tensors,
                                                            const c10d::AllreduceOptions& options) {
  const Tensor& tensor = only_tensor("all_reduce", tensors);
  const Reduction reduction = to_reduction("all_reduce", tensor, options.reduceOp);
  const Tensor buffer = dense(scaled(tensor, options.reduceOp));
  const CallOptions how = call_options(options.timeout);
  WorkShoal::Call call{.type = c10d::OpType::ALLREDUCE,
                       .name = "all_reduce",
                       .profiling_title = "shoal:all_reduce",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = {}};
  if (!buffer.is_same(tensor)) call.unpack = [buffer, tensor]() mutable { tensor.copy_(buffer); };
  return start(
      std::move(call),
      communicator_->all_reduce_async(buffer.data_ptr(), buffer.data_ptr(), reduction.count, reduction.type, reduction.op, how),
      how);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce_coalesced(std::vector<Tensor>& tensors,
                                                                      const c10d::AllreduceCoalescedOptions& options) {
  check_same_type("all_reduce_coalesced", tensors);
  return all_of("all_reduce_coalesced", tensors.size(), tensors, [&](std::size_t i) {
    std::vector<Tensor> one{tensors[i]};
    return allreduce(one, options);
  });
}

}  // namespace shoal::torch
