// Tensors of other devices than the CPU ("device tensors"; above all CUDA's): shoal works on host memory in their place.
// Nothing here names a vendor: streams, events and pinned memory are those that torch knows for the device's type.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace shoal::torch {

inline bool on_device(const at::Tensor& tensor) { return !tensor.device().is_cpu(); }

/// Host memory for the elements of a device tensor, in row-major order. Pinned where the type of device has an allocator for
/// that. Contents undefined.
at::Tensor host_memory(const at::Tensor& tensor);
/// The same for `elements` of its type.
at::Tensor host_memory(const at::Tensor& tensor, std::int64_t elements);

/// Copies between host memory and a device tensor, in the current stream of its device. Between two tensors on the CPU: at
/// once. wait_for_stream() tells when what `from_device` wrote may be read; what `to_device` reads may be freed at any time.
void from_device(const at::Tensor& memory, const at::Tensor& tensor);
void to_device(const at::Tensor& tensor, const at::Tensor& memory);

/// Blocks this thread until all is done that the current stream of a device holds by now.
void wait_for_stream(c10::Device device);

/// Where a call's result lies, for the future that will hold it: nowhere for tensors on the CPU.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& outputs);

/// Moves the result of one call to its device when it has come. The thread of the call makes it, another one uses it.
class DeviceResult {
 public:
  /// The outputs are written after what the caller's current stream holds now: it may still use their memory.
  explicit DeviceResult(c10::Device device);

  /// Runs `unpack`, which copies to `outputs`, in a stream of its own, and returns that stream. The copies go on after this.
  c10::Stream write(const std::vector<at::Tensor>& outputs, const std::function<void()>& unpack) const;

 private:
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  c10::Event ready_;
};

}  // namespace shoal::torch
