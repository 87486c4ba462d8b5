// Tensors of devices other than the CPU ("device tensors"; mainly CUDA's): shoal works on host memory in their place. This
// file does not depend on a vendor: streams, events and pinned memory are those that torch has for the device's type.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace shoal::torch {

inline bool on_device(const at::Tensor& tensor) { return !tensor.device().is_cpu(); }

/// Host memory for the elements of a device tensor, in row-major order. Pinned if the type of device has an allocator for
/// pinned memory. Contents undefined.
at::Tensor host_memory(const at::Tensor& tensor);
/// The same for `elements` of its type.
at::Tensor host_memory(const at::Tensor& tensor, std::int64_t elements);

/// Copies between host memory and a device tensor, in the current stream of its device. Between two tensors on the CPU: at
/// once. After wait_for_stream() the data written by `from_device` may be read; the memory read by `to_device` may be freed
/// at any time.
void from_device(const at::Tensor& memory, const at::Tensor& tensor);
void to_device(const at::Tensor& tensor, const at::Tensor& memory);

/// Blocks this thread until the work that the current stream of the device holds now is done.
void wait_for_stream(c10::Device device);

/// The devices of a call's result, for the future that will hold it: empty for tensors on the CPU.
std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& outputs);

/// Moves the result of one call to its device after its arrival. The calling thread makes it, another thread uses it.
class DeviceResult {
 public:
  /// The outputs are written after the work that the caller's current stream holds now, which may still use their memory.
  explicit DeviceResult(c10::Device device);

  /// Runs `unpack`, which copies to `outputs`, in a separate stream, and returns that stream. The copies may continue after
  /// the return.
  c10::Stream write(const std::vector<at::Tensor>& outputs, const std::function<void()>& unpack) const;

 private:
  const c10::Device device_;
  const c10::impl::VirtualGuardImpl guard_;
  c10::Event ready_;
};

}  // namespace shoal::torch
