// CudaApi: all that the library asks of CUDA, and nothing else. The real one (kernels/runtime_api.cu) is loaded at run time;
// the tests have one made of host threads (tests/cuda/fake_cuda.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <shoal/status.h>

#include "kernels/parameters.h"

namespace shoal::cuda {

/// A cudaStream_t; null is the default stream of the current device.
using Stream = void*;
/// A cudaEvent_t without timing.
using Event = void*;

struct DeviceDescription {
  std::string name;
  std::array<std::byte, 16> uuid{};
  int processors = 0;  ///< SMs
  int major = 0;       ///< compute capability
  int minor = 0;
  // How ranks reach each other's memory, and how their streams wait for each other.
  bool ipc = false;
  bool descriptors = false;  ///< memory of cuMemCreate
  bool stream_memory = false;
  bool mps = false;  ///< a server runs the kernels of all processes of the device side by side
};

enum class MemoryKind : std::uint8_t { host, device, managed };

/// What memory a pointer points to.
struct PointerDescription {
  MemoryKind kind = MemoryKind::host;
  int device = -1;            ///< of memory of a device
  std::byte* base = nullptr;  ///< of the allocation
  std::size_t bytes = 0;      ///< of the allocation
  bool mapped = false;        ///< what follows may be of another allocation and belong to the same buffer (cuMemMap)
  /// Identifies this allocation among all of the process, also after it has been freed and its address is in use again.
  std::uint64_t allocation = 0;
};

/// Names an allocation of one process for another one of the same host.
struct MemoryHandle {
  std::array<std::byte, 64> bytes{};
  std::uint64_t size = 0;
  /// Not negative: the memory is a file. The importing process puts a descriptor of its own here and keeps it. The descriptor
  /// of an export belongs to the caller of export_memory().
  std::int32_t descriptor = -1;
};

/// One stream memory operation on a 32-bit flag in pinned memory.
struct FlagOperation {
  enum class Kind : std::uint8_t {
    write,  ///< after all that precedes it on the stream is visible to every processor
    wait,   ///< until the flag is `value` or beyond, in the arithmetic of 32 bits that wrap
  };
  Kind kind = Kind::write;
  std::uint32_t* flag = nullptr;  ///< the host's address
  std::uint32_t value = 0;
};

/// Calls return before the work that they enqueue is done. Errors: unsupported, where a device or driver lacks something;
/// system_error with CUDA's text otherwise, the name of the call first. An error of an earlier kernel may appear in any call.
///
/// Thread rule: any thread. A thread works on one device at a time, which use_device() sets for that thread.
class CudaApi {
 public:
  CudaApi() = default;
  CudaApi(const CudaApi&) = delete;
  CudaApi& operator=(const CudaApi&) = delete;
  virtual ~CudaApi() = default;

  /// The newest CUDA version that the driver supports: 12080 is 12.8.
  virtual Result<int> driver_version() = 0;
  virtual Result<int> device_count() = 0;
  virtual Result<int> current_device() = 0;
  virtual Status use_device(int device) = 0;
  virtual Result<DeviceDescription> describe_device(int device) = 0;
  virtual Result<PointerDescription> describe_pointer(const void* pointer) = 0;
  /// Whether `device` may read the memory of `peer` directly; asked of both when peers' memory is mapped.
  virtual Result<bool> can_access_peer(int device, int peer) = 0;

  virtual Result<void*> allocate(std::size_t bytes) = 0;
  virtual Status release(void* memory) = 0;
  /// Page-locked memory of the host that streams read and write at the same address.
  virtual Result<void*> allocate_pinned(std::size_t bytes) = 0;
  virtual Status release_pinned(void* memory) = 0;
  /// Page-locks existing memory, such as memory that processes share.
  virtual Status pin(void* memory, std::size_t bytes) = 0;
  virtual Status unpin(void* memory) = 0;

  /// Exports a whole allocation, by its base; of memory made of several mappings, the one that begins there. Errors:
  /// unsupported for memory that cannot be given to other processes.
  virtual Result<MemoryHandle> export_memory(void* base) = 0;
  /// Maps another process's allocation for the current device, with peer access where it is another device's. Never an
  /// allocation of this process.
  virtual Result<void*> import_memory(const MemoryHandle& handle) = 0;
  virtual Status forget_memory(void* imported) = 0;

  /// `urgent`: its kernels run before those of other streams.
  virtual Result<Stream> create_stream(bool urgent) = 0;
  virtual Status destroy_stream(Stream stream) = 0;
  virtual Status synchronize(Stream stream) = 0;
  virtual Result<bool> is_capturing(Stream stream) = 0;

  virtual Result<Event> create_event() = 0;
  virtual Status destroy_event(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;
  /// Whether all work that the event was recorded behind is done.
  virtual Result<bool> has_happened(Event event) = 0;
  /// Blocks the host until the event has happened; the thread sleeps.
  virtual Status wait_host(Event event) = 0;

  virtual Status flags(Stream stream, std::span<const FlagOperation> operations) = 0;
  virtual Status copy(void* target, const void* source, std::size_t bytes, Stream stream) = 0;
  /// Calls `function` in a thread of the driver when the stream reaches it; the stream continues when the function returns.
  /// The function must not call CUDA, nor wait for work of other streams.
  virtual Status call_host(Stream stream, void (*function)(void*), void* argument) = 0;

  /// Loads every kernel onto the current device. A kernel that is loaded at its first launch may wait there for all streams,
  /// and so for other ranks.
  virtual Status load_kernels() = 0;
  virtual Status launch(const kernels::FoldParameters& parameters, Stream stream) = 0;
  virtual Status launch(const kernels::CopyParameters& parameters, Stream stream) = 0;
  virtual Status launch(const kernels::FusedParameters& parameters, Stream stream) = 0;
};

/// The CUDA of this machine; never destroyed. The first call opens libshoal_cuda.so, which lies beside libshoal.so. Errors:
/// unsupported, saying which of library, driver and GPU is missing. Thread rule: any thread.
Result<CudaApi*> load_cuda_api();

/// The function that libshoal_cuda.so exports: fills `message` where there is no CudaApi. `version`: kCudaApiVersion of the
/// caller.
using CudaApiEntry = CudaApi* (*)(int version, char* message, std::size_t message_bytes);
inline constexpr const char* kCudaApiEntryName = "shoal_cuda_api";
inline constexpr int kCudaApiVersion = 2;

}  // namespace shoal::cuda
