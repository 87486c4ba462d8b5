#include "torch_plugin/process_group/process_group_shoal.h"

#include <algorithm>
#include <utility>

#include <shoal/memory.h>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/store_adapter.h"

namespace shoal::torch {
namespace {

using at::Tensor;

/// A tensor that is where and what this backend can use.
void check_tensor(const char* call, const Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "shoal ", call, ": undefined tensor");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "shoal ", call,
                    ": sparse tensors are not supported; convert with to_dense()");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "shoal ", call, ": the tensor is on ", tensor.device(),
                    ", but this backend serves CPU tensors");
}

const Tensor& only_tensor(const char* call, const std::vector<Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "shoal ", call, ": takes one tensor per rank, got a list of ", tensors.size());
  check_tensor(call, tensors[0]);
  return tensors[0];
}

/// The memory to communicate from and to: the tensor itself unless it has holes or overlaps itself.
Tensor dense(const Tensor& tensor) { return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous(); }

}  // namespace

ProcessGroupShoal::ProcessGroupShoal(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size), options_(options ? std::move(options) : c10::make_intrusive<Options>()) {
  StoreAdapter adapter(store);
  CommunicatorOptions wanted = Communicator::options_from_environment();
  wanted.timeout = options_->timeout;
  if (!options_->algorithm.empty()) wanted.algorithm = options_->algorithm;
  if (!options_->transports.empty()) wanted.transports = options_->transports;
  Result<std::unique_ptr<Communicator>> made = Communicator::create(adapter, rank, size, wanted);
  if (!made.ok()) throw_status("init_process_group", made.status());
  communicator_ = std::move(made).value();
}

ProcessGroupShoal::~ProcessGroupShoal() = default;

void ProcessGroupShoal::setTimeout(std::chrono::milliseconds timeout) { options_->timeout = timeout; }

CallOptions ProcessGroupShoal::call_options(std::chrono::milliseconds timeout) const {
  CallOptions options;
  options.timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  return options;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::start(WorkShoal::Call call, Result<shoal::Work> operation) {
  if (!operation.ok()) throw_status(call.name, operation.status());
  ++calls_;
  auto work = c10::make_intrusive<WorkShoal>(getRank(), std::move(call));
  work->follow(std::move(operation).value());
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allreduce(std::vector<Tensor>& tensors,
                                                            const c10d::AllreduceOptions& options) {
  const Tensor& tensor = only_tensor("all_reduce", tensors);
  const Reduction reduction = to_reduction(tensor, options.reduceOp);
  const Tensor buffer = dense(tensor);
  WorkShoal::Call call{.type = c10d::OpType::ALLREDUCE,
                       .name = "all_reduce",
                       .profiling_title = "shoal:all_reduce",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = {}};
  if (!buffer.is_same(tensor)) call.unpack = [buffer, tensor]() mutable { tensor.copy_(buffer); };
  return start(std::move(call), communicator_->all_reduce_async(buffer.data_ptr(), buffer.data_ptr(), reduction.count,
                                                                reduction.type, reduction.op, call_options(options.timeout)));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::broadcast(std::vector<Tensor>& tensors,
                                                            const c10d::BroadcastOptions& options) {
  const Tensor& tensor = only_tensor("broadcast", tensors);
  TORCH_CHECK_VALUE(options.rootTensor == 0, "shoal broadcast: takes one tensor per rank, so its root tensor is 0, not ",
                    options.rootTensor);
  TORCH_CHECK_VALUE(options.rootRank >= 0 && options.rootRank < getSize(), "shoal broadcast: invalid root rank ",
                    options.rootRank, "; the group has ", getSize(), " ranks");
  const Tensor buffer = dense(tensor);
  const Movement movement = to_movement(buffer);
  WorkShoal::Call call{.type = c10d::OpType::BROADCAST,
                       .name = "broadcast",
                       .profiling_title = "shoal:broadcast",
                       .inputs = {tensor},
                       .staging = {buffer},
                       .outputs = {tensor},
                       .unpack = {}};
  if (!buffer.is_same(tensor)) call.unpack = [buffer, tensor]() mutable { tensor.copy_(buffer); };
  return start(std::move(call),
               communicator_->broadcast_async(buffer.data_ptr(), movement.count, movement.type,
                                              static_cast<int>(options.rootRank), call_options(options.timeout)));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::allgather(std::vector<std::vector<Tensor>>& outputs,
                                                            std::vector<Tensor>& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const Tensor& input = only_tensor("all_gather", inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "shoal all_gather: takes one list of outputs per rank, got ", outputs.size());
  const std::vector<Tensor>& parts = outputs[0];
  TORCH_CHECK_VALUE(parts.size() == static_cast<std::size_t>(getSize()), "shoal all_gather: the list of outputs has ",
                    parts.size(), " tensors; the group has ", getSize(), " ranks");
  for (const Tensor& part : parts) {
    check_tensor("all_gather", part);
    TORCH_CHECK_VALUE(part.scalar_type() == input.scalar_type() && part.numel() == input.numel(),
                      "shoal all_gather: an output is ", c10::toString(part.scalar_type()), part.sizes(), ", the input ",
                      c10::toString(input.scalar_type()), input.sizes());
  }
  // The outputs lie anywhere in memory; shoal fills one piece, which is dealt out at the end.
  const Tensor source = input.contiguous();
  const Tensor gathered = at::empty({getSize(), source.numel()}, source.options());
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::ALLGATHER,
                       .name = "all_gather",
                       .profiling_title = "shoal:all_gather",
                       .inputs = {input},
                       .staging = {source, gathered},
                       .outputs = parts,
                       .unpack = {}};
  call.unpack = [gathered, parts]() mutable {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      parts[rank].copy_(gathered[static_cast<std::int64_t>(rank)].view(parts[rank].sizes()));
    }
  };
  return start(std::move(call), communicator_->all_gather_async(source.data_ptr(), gathered.data_ptr(), movement.count,
                                                                movement.type, call_options(options.timeout)));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::_allgather_base(Tensor& output, Tensor& input,
                                                                  const c10d::AllgatherOptions& options) {
  check_tensor("all_gather_into_tensor", input);
  check_tensor("all_gather_into_tensor", output);
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "shoal all_gather_into_tensor: the output is ",
                    c10::toString(output.scalar_type()), ", the input ", c10::toString(input.scalar_type()));
  TORCH_CHECK_VALUE(output.numel() == input.numel() * getSize(), "shoal all_gather_into_tensor: the output has ",
                    output.numel(), " elements; ", getSize(), " ranks with ", input.numel(), " each need ",
                    input.numel() * getSize());
  const Tensor source = input.contiguous();
  const Tensor gathered = output.contiguous();  // itself where it is contiguous
  const Movement movement = to_movement(source);
  WorkShoal::Call call{.type = c10d::OpType::_ALLGATHER_BASE,
                       .name = "all_gather_into_tensor",
                       .profiling_title = "shoal:_all_gather_base",
                       .inputs = {input},
                       .staging = {source, gathered},
                       .outputs = {output},
                       .unpack = {}};
  if (!gathered.is_same(output)) call.unpack = [gathered, output]() mutable { output.copy_(gathered); };
  return start(std::move(call), communicator_->all_gather_async(source.data_ptr(), gathered.data_ptr(), movement.count,
                                                                movement.type, call_options(options.timeout)));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::barrier(const c10d::BarrierOptions& options) {
  WorkShoal::Call call{.type = c10d::OpType::BARRIER,
                       .name = "barrier",
                       .profiling_title = "shoal:barrier",
                       .inputs = {},
                       .staging = {},
                       .outputs = {},
                       .unpack = {}};
  return start(std::move(call), communicator_->barrier_async(call_options(options.timeout)));
}

Tensor ProcessGroupShoal::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(options.device().is_cpu(), "shoal allocate_tensor: device ", options.device(), "; only cpu is served");
  TORCH_CHECK_VALUE(size >= 0, "shoal allocate_tensor: ", size, " elements");
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  Result<void*> memory = mem_alloc(std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) C10_THROW_ERROR(DistBackendError, "shoal allocate_tensor: " + memory.status().message());
  return at::from_blob(
      *memory, {size}, [](void* piece) { static_cast<void>(mem_free(piece)); }, options);
}

void ProcessGroupShoal::abort() { communicator_->abort("abort of the process group"); }

c10d::ErrorType ProcessGroupShoal::getError() {
  switch (communicator_->status().code()) {
    case StatusCode::ok:
      return c10d::ErrorType::SUCCESS;
    case StatusCode::timeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_failed:
    case StatusCode::aborted:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace shoal::torch
