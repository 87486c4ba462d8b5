// A fake CUDA of host threads: every stream is a thread, only these threads can access "device" memory, and kernels run the
// same code as on the device (kernels/host_run.h). It delays the work of streams by a seed, shares memory between processes as
// CUDA IPC does, fails chosen calls, and checks how it is used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "src/cuda/cuda_api.h"

namespace shoal::testing {

struct FakeCudaOptions {
  std::uint64_t seed = 1;
  int longest_delay_us = 0;    ///< before each work item of a stream; 0: none
  int device = 0;              ///< device number of this process
  bool own_device = false;     ///< each process has its own GPU, with its own identity
  bool exports_memory = true;  ///< false: memory cannot be shared with other processes
  bool reads_peers = true;     ///< false: no peer access
  bool capturing = false;      ///< streams report that they are being captured
  bool mps = false;            ///< an MPS server runs the kernels of all processes side by side
  int mps_of_rank = -1;        ///< only this rank has the MPS server (StreamCase)
  std::string refused_call;    ///< the name of a method that fails ...
  int refused_after = 0;       ///< ... after this many successful calls
};

/// Thread rule: as CudaApi. Created after fork(), by the process that uses it.
class FakeCuda final : public cuda::CudaApi {
 public:
  explicit FakeCuda(FakeCudaOptions options);
  ~FakeCuda() override;

  /// Errors of its user; empty: none. With `at_end`, also what is still allocated.
  std::string errors(bool at_end);
  /// Host address of device memory, for tests that fill and read it. Only while no stream uses the memory.
  std::byte* host_address(void* memory);
  /// A buffer of `pieces` adjacent allocations of `piece_bytes` (whole pages), as cuMemMap makes them: each can be shared with
  /// other processes as a descriptor only. Lives as long as the fake.
  void* allocate_mapped(std::size_t piece_bytes, std::size_t pieces);
  [[nodiscard]] int imports() const;  ///< current mappings of memory of other processes
  [[nodiscard]] int kernels_run() const { return kernels_run_; }
  [[nodiscard]] int bytes_copied_to_host() const { return copied_to_host_; }
  void set_capturing(bool capturing) { options_.capturing = capturing; }

  Result<int> driver_version() override;
  Result<int> device_count() override;
  Result<int> current_device() override;
  Status use_device(int device) override;
  Result<cuda::DeviceDescription> describe_device(int device) override;
  Result<cuda::PointerDescription> describe_pointer(const void* pointer) override;
  Result<bool> can_access_peer(int device, int peer) override;
  Result<void*> allocate(std::size_t bytes) override;
  Status release(void* memory) override;
  Result<void*> allocate_pinned(std::size_t bytes) override;
  Status release_pinned(void* memory) override;
  Status pin(void* memory, std::size_t bytes) override;
  Status unpin(void* memory) override;
  Result<cuda::MemoryHandle> export_memory(void* base) override;
  Result<void*> import_memory(const cuda::MemoryHandle& handle) override;
  Status forget_memory(void* imported) override;
  Result<cuda::Stream> create_stream(bool urgent) override;
  Status destroy_stream(cuda::Stream stream) override;
  Status synchronize(cuda::Stream stream) override;
  Result<bool> is_capturing(cuda::Stream stream) override;
  Result<cuda::Event> create_event() override;
  Status destroy_event(cuda::Event event) override;
  Status record(cuda::Event event, cuda::Stream stream) override;
  Status wait(cuda::Stream stream, cuda::Event event) override;
  Result<bool> has_happened(cuda::Event event) override;
  Status wait_host(cuda::Event event) override;
  Status flags(cuda::Stream stream, std::span<const cuda::FlagOperation> operations) override;
  Status copy(void* target, const void* source, std::size_t bytes, cuda::Stream stream) override;
  Status call_host(cuda::Stream stream, void (*function)(void*), void* argument) override;
  Status load_kernels() override;
  Status launch(const kernels::FoldParameters& parameters, cuda::Stream stream) override;
  Status launch(const kernels::CopyParameters& parameters, cuda::Stream stream) override;
  Status launch(const kernels::FusedParameters& parameters, cuda::Stream stream) override;

 private:
  /// An allocation: the address that the library sees is not accessible; streams use `real`.
  struct Memory {
    std::byte* shown = nullptr;
    std::byte* real = nullptr;
    std::size_t bytes = 0;
    std::size_t wanted_bytes = 0;
    int descriptor = -1;
    std::uint64_t id = 0;
    bool imported = false;
    bool mapped = false;
  };
  struct FakeStream;
  struct FakeEvent;

  Status refuse(const char* call);
  /// `shown` and `real`: addresses that are already reserved, or null.
  Result<void*> map(int descriptor, std::size_t bytes, std::size_t wanted, bool imported, std::byte* shown = nullptr,
                    std::byte* real = nullptr);
  void unmap(const Memory& memory);
  /// Host address of `address`, which may be a host address already. An access to freed memory ends the process.
  [[nodiscard]] std::byte* real(const void* address) const;
  void add_error(const std::string& what);
  Status enqueue(cuda::Stream stream, std::function<void()> work);
  FakeStream* find(cuda::Stream stream);
  void delay(FakeStream& stream);
  [[nodiscard]] bool stopping() const { return stopping_.load(); }

  FakeCudaOptions options_;
  mutable std::mutex mutex_;  ///< guards what follows
  std::map<std::uintptr_t, Memory> memories_;
  std::map<std::uintptr_t, std::size_t> pinned_;
  std::map<std::string, int> calls_;
  std::set<std::unique_ptr<FakeStream>> streams_;
  std::set<FakeEvent*> events_;
  std::string errors_;
  std::uint64_t next_id_ = 1;
  std::unique_ptr<FakeStream> default_stream_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> kernels_run_{0};
  std::atomic<int> copied_to_host_{0};
};

}  // namespace shoal::testing
