#include "torch_plugin/process_group/staging.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

namespace shoal::torch {

using at::Tensor;

namespace {

/// Null if this type of device has none.
c10::Allocator* pinned_allocator(c10::DeviceType type) {
  try {
    return at::globalContext().getPinnedMemoryAllocator(type);
  } catch (const c10::Error&) {
    return nullptr;
  }
}

Tensor host_memory(const Tensor& tensor, c10::IntArrayRef sizes) {
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (c10::Allocator* pinned = pinned_allocator(tensor.device().type()); pinned != nullptr) {
    return at::detail::empty_generic(sizes, pinned, keys, tensor.scalar_type(), std::nullopt);
  }
  return at::empty(sizes, at::TensorOptions(at::kCPU).dtype(tensor.dtype()));
}

/// Whether a copy between the two may continue after the call returns: without pinned memory the copy has to end first.
bool in_stream_order(const Tensor& memory, const Tensor& tensor) {
  return on_device(tensor) && at::globalContext().isPinnedPtr(memory.data_ptr(), tensor.device().type());
}

}  // namespace

Tensor host_memory(const Tensor& tensor) { return host_memory(tensor, tensor.sizes()); }

Tensor host_memory(const Tensor& tensor, std::int64_t elements) { return host_memory(tensor, c10::IntArrayRef(elements)); }

void from_device(const Tensor& memory, const Tensor& tensor) {
  const at::NoGradGuard no_grad;  // an input may require a gradient
  memory.copy_(tensor, in_stream_order(memory, tensor));
}

void to_device(const Tensor& tensor, const Tensor& memory) {
  const at::NoGradGuard no_grad;
  tensor.copy_(memory, in_stream_order(memory, tensor));
}

void wait_for_stream(c10::Device device) {
  c10::Event reached(device.type());
  reached.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  reached.synchronize();
}

std::vector<c10::Device> devices_of(const std::vector<Tensor>& outputs) {
  if (outputs.empty() || !on_device(outputs[0])) return {};
  return {outputs[0].device()};
}

DeviceResult::DeviceResult(c10::Device device) : device_(device), guard_(device.type()), ready_(device.type()) {
  ready_.record(guard_.getStream(device));
}

c10::Stream DeviceResult::write(const std::vector<Tensor>& outputs, const std::function<void()>& unpack) const {
  const c10::Stream stream = guard_.getStreamFromGlobalPool(device_);
  const c10::StreamGuard current(stream);
  ready_.block(stream);
  // If the caller drops an output without waiting, the allocator must not reuse its memory while it is being written.
  for (const Tensor& output : outputs) guard_.recordDataPtrOnStream(output.storage().data_ptr(), stream);
  unpack();
  return stream;
}

}  // namespace shoal::torch
