// A fake CUDA of host threads: every stream is a thread, "device" memory is memory that only these threads can touch, kernels
// are run by the code that the device runs (kernels/host_run.h). It delays what streams do by a seed, shares memory between
// processes as CUDA IPC does, refuses what it is told to refuse, and checks how it is used.
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
  int longest_delay_us = 0;    ///< before what a stream does; 0: none
  int device = 0;              ///< of this process
  bool own_device = false;     ///< each process has a GPU of its own: another identity
  bool exports_memory = true;  ///< false: as where memory cannot be given to other processes
  bool reads_peers = true;     ///< false: as where there is no peer access
  bool capturing = false;      ///< streams say that they are being captured
  bool mps = false;            ///< a server runs the kernels of all processes side by side
  int mps_of_rank = -1;        ///< of this rank's only (StreamCase)
  std::string refused_call;    ///< the name of a method that fails ...
  int refused_after = 0;       ///< ... after so many calls of it that went well
};

/// Thread rule: as CudaApi. Made after fork() by the process that uses it.
class FakeCuda final : public cuda::CudaApi {
 public:
  explicit FakeCuda(FakeCudaOptions options);
  ~FakeCuda() override;

  /// What was done wrong with it; empty: nothing. Counts what is still allocated, too, where `at_end`.
  std::string complaints(bool at_end);
  /// Address of the host of device memory, for tests that fill and read it. Only while no stream uses it.
  std::byte* touch(void* memory);
  /// A buffer of `pieces` allocations of `piece_bytes` (whole pages) in a row, as cuMemMap makes them: each can be given to
  /// other processes as a descriptor only. Ends with the fake.
  void* allocate_mapped(std::size_t piece_bytes, std::size_t pieces);
  [[nodiscard]] int imports() const;  ///< mappings of others' memory that are there now
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
  /// A run of memory: what the library sees cannot be touched, what streams use lies elsewhere.
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
  /// At `shown` and `real`, where these are reserved already.
  Result<void*> map(int descriptor, std::size_t bytes, std::size_t wanted, bool imported, std::byte* shown = nullptr,
                    std::byte* real = nullptr);
  void unmap(const Memory& memory);
  /// Address of the host of `address`, which may be of the host already. Complains of freed memory and ends the process.
  [[nodiscard]] std::byte* real(const void* address) const;
  void complain(const std::string& what);
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
  std::string complaints_;
  std::uint64_t next_id_ = 1;
  std::unique_ptr<FakeStream> default_stream_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> kernels_run_{0};
  std::atomic<int> copied_to_host_{0};
};

}  // namespace shoal::testing
