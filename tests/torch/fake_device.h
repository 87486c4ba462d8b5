// A device for tests where there is no GPU: torch's PrivateUse1, named "fake". As with CUDA, what is asked of it happens later,
// in streams; unlike CUDA's, every step comes late by a random time, so that a missing synchronisation is seen as wrong data.
//
// - Each stream is a thread with a queue. Streams wait for each other through events only.
// - Its memory cannot be read or written by way of its address, so a tensor that is taken for one of the CPU ends the test.
// - Memory given back is overwritten, in the order of the stream that it was made in and after the streams that it was recorded
// on.
// - Pinned memory is full of junk at first. Copies from or to other memory of the host end before the call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace shoal::fake {

inline constexpr int kDevices = 4;

at::Device device(int index);

/// A stream that nobody else has.
c10::Stream new_stream(int index);

/// A copy of a tensor of the CPU, which arrives late in the current stream of the device.
at::Tensor on_device(const at::Tensor& tensor, int index);

/// Puts that many steps into the current stream of the device.
void keep_busy(int index, int steps);

/// Steps come late by other times from here on.
void set_seed(std::uint32_t seed);

/// Waits for all streams; then whether nobody has written to memory after giving it back.
bool freed_memory_is_untouched();

// Under torch, for a CUDA that has these streams and this memory (fake_cuda_api). A stream's native handle names it; null: the
// default stream of the current device.

void enqueue(void* stream, std::function<void()> step);
void synchronize(void* stream);
int current_device();
void set_current_device(int index);

/// Memory of the current device.
void* allocate(std::size_t bytes);
void release(void* memory);
/// The allocation that an address lies in; none for memory of the host.
struct Allocation {
  void* base;
  std::size_t bytes;
  int device;
  std::uint64_t number;  ///< of no other one
};
std::optional<Allocation> allocation_of(const void* address);
/// Where the host finds it: what lies in the host's memory anyway stays as it is. For steps of streams.
void* host_address(const void* address);

}  // namespace shoal::fake
