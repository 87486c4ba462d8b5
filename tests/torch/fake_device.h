// A device for tests without a GPU: torch's PrivateUse1, named "fake". Like CUDA it works asynchronously on streams. Unlike
// CUDA it delays every step by a random time, so that missing synchronization gives wrong data.
//
// - Each stream is a thread with a queue. Streams wait for each other through events only.
// - The CPU cannot access its memory, so code that takes a device tensor for a CPU tensor crashes.
// - Freed memory is overwritten, in the order of the stream on which it was allocated and after the streams on which it was
//   recorded.
// - Pinned memory is full of junk at first. Copies from or to other host memory end before the call returns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace shoal::fake {

inline constexpr int kDevices = 4;

at::Device device(int index);

/// A new stream.
c10::Stream new_stream(int index);

/// A copy of a CPU tensor, made with a delay on the current stream of the device.
at::Tensor on_device(const at::Tensor& tensor, int index);

/// Adds that many steps to the current stream of the device.
void keep_busy(int index, int steps);

/// A step of the current stream of the device, from the construction until release(): so the stream is busy, however long the
/// host needs.
class BusyStream {
 public:
  explicit BusyStream(int index);
  ~BusyStream() { release(); }
  BusyStream(const BusyStream&) = delete;
  BusyStream& operator=(const BusyStream&) = delete;
  void release();

 private:
  std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
};

/// Changes the random delays of later steps.
void set_seed(std::uint32_t seed);

/// Waits for all streams. Returns whether no freed memory has been written.
bool freed_memory_is_untouched();

// For fake_cuda_api, which shares these streams and this memory. A stream is given by its native handle; null: the default
// stream of the current device.

void enqueue(void* stream, std::function<void()> step);
void synchronize(void* stream);
int current_device();
void set_current_device(int index);

/// Memory of the current device.
void* allocate(std::size_t bytes);
void release(void* memory);
/// The allocation that contains an address; none for host memory.
struct Allocation {
  void* base;
  std::size_t bytes;
  int device;
  std::uint64_t number;  ///< unique
};
std::optional<Allocation> allocation_of(const void* address);
/// The address by which the CPU can access device memory, for steps of streams. Host addresses stay as they are.
void* host_address(const void* address);

}  // namespace shoal::fake
