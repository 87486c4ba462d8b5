#include "tests/torch/fake_cuda_api.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kernels/host_run.h"
#include "src/cuda/cuda_api.h"
#include "tests/torch/fake_device.h"

namespace shoal::fake {
namespace {

using cuda::FlagOperation;

/// Odd, so that results do not depend on a multiple of the warp size.
constexpr std::size_t kKernelThreads = 37;
constexpr std::chrono::microseconds kFlagPeriod{40};
constexpr std::size_t kPage = 4096;

std::atomic<int> steps{0};

template <typename T>
T* host_pointer(T* address) {
  return static_cast<T*>(host_address(address));
}

/// Recordings are numbered: a wait is for the last one at the time of the call.
struct CudaEvent {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0;
    std::uint64_t happened = 0;
    void wait(std::uint64_t number) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return happened >= number; });
    }
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};
CudaEvent::State& state_of(cuda::Event event) { return *static_cast<CudaEvent*>(event)->state; }

class FakeDeviceCuda final : public cuda::CudaApi {
 public:
  Result<int> driver_version() override { return 13000; }
  Result<int> device_count() override { return kDevices; }
  Result<int> current_device() override { return fake::current_device(); }
  Status use_device(int device) override {
    set_current_device(device);
    return {};
  }
  Result<cuda::DeviceDescription> describe_device(int device) override {
    if (!cuda_behaviour().works) return Status(StatusCode::unsupported, "the test's device lacks something");
    cuda::DeviceDescription description;
    description.name = "fake";
    description.processors = 4;
    description.major = 9;
    if (!cuda_behaviour().shared_device) description.uuid[0] = static_cast<std::byte>(1 + device);
    return description;
  }
  Result<cuda::PointerDescription> describe_pointer(const void* pointer) override {
    cuda::PointerDescription description;
    if (const auto allocation = allocation_of(pointer)) {
      description.kind = cuda::MemoryKind::device;
      description.device = allocation->device;
      description.base = static_cast<std::byte*>(allocation->base);
      description.bytes = allocation->bytes;
      description.allocation = allocation->number;
    }
    return description;
  }
  Result<bool> can_access_peer(int, int) override { return true; }

  Result<void*> allocate(std::size_t bytes) override { return fake::allocate(bytes); }
  Status release(void* memory) override {
    fake::release(memory);
    return {};
  }
  Result<void*> allocate_pinned(std::size_t bytes) override {
    return std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  }
  Status release_pinned(void* memory) override {
    std::free(memory);
    return {};
  }
  Status pin(void*, std::size_t) override { return {}; }
  Status unpin(void*) override { return {}; }

  // The ranks are threads of one process, so memory has the same address for all.
  Result<cuda::MemoryHandle> export_memory(void* base) override {
    if (!cuda_behaviour().exports_memory) return Status(StatusCode::unsupported, "the test's device does not export memory");
    cuda::MemoryHandle handle;
    std::memcpy(handle.bytes.data(), &base, sizeof base);
    return handle;
  }
  Result<void*> import_memory(const cuda::MemoryHandle& handle) override {
    void* base = nullptr;
    std::memcpy(&base, handle.bytes.data(), sizeof base);
    return base;
  }
  Status forget_memory(void*) override { return {}; }

  Result<cuda::Stream> create_stream(bool) override { return new_stream(fake::current_device()).native_handle(); }
  Status destroy_stream(cuda::Stream) override { return {}; }
  Status synchronize(cuda::Stream stream) override {
    fake::synchronize(stream);
    return {};
  }
  Result<bool> is_capturing(cuda::Stream) override { return cuda_behaviour().capturing.load(); }

  Result<cuda::Event> create_event() override { return static_cast<cuda::Event>(new CudaEvent); }
  Status destroy_event(cuda::Event event) override {
    delete static_cast<CudaEvent*>(event);
    return {};
  }
  Status record(cuda::Event event, cuda::Stream stream) override {
    const auto state = static_cast<CudaEvent*>(event)->state;
    std::uint64_t number = 0;
    {
      const std::scoped_lock lock(state->mutex);
      number = ++state->recorded;
    }
    enqueue(stream, [state, number] {
      const std::scoped_lock lock(state->mutex);
      state->happened = number;
      state->changed.notify_all();
    });
    return {};
  }
  Status wait(cuda::Stream stream, cuda::Event event) override {
    const auto state = static_cast<CudaEvent*>(event)->state;
    const std::scoped_lock lock(state->mutex);
    enqueue(stream, [state, number = state->recorded] { state->wait(number); });
    return {};
  }
  Result<bool> has_happened(cuda::Event event) override {
    CudaEvent::State& state = state_of(event);
    const std::scoped_lock lock(state.mutex);
    return state.happened >= state.recorded;
  }
  Status wait_host(cuda::Event event) override {
    CudaEvent::State& state = state_of(event);
    std::unique_lock lock(state.mutex);
    state.changed.wait(lock, [&] { return state.happened >= state.recorded; });
    return {};
  }

  Status flags(cuda::Stream stream, std::span<const FlagOperation> operations) override {
    enqueue(stream, [all = std::vector<FlagOperation>(operations.begin(), operations.end())] {
      for (const FlagOperation& each : all) {
        std::atomic_ref flag(*each.flag);
        if (each.kind == FlagOperation::Kind::write) {
          flag.store(each.value, std::memory_order_release);
          continue;
        }
        while (!kernels::reached(flag.load(std::memory_order_acquire), each.value)) std::this_thread::sleep_for(kFlagPeriod);
      }
    });
    return {};
  }
  Status copy(void* target, const void* source, std::size_t bytes, cuda::Stream stream) override {
    enqueue(stream, [to = host_address(target), from = host_address(source), bytes] {
      ++steps;
      std::memcpy(to, from, bytes);
    });
    return {};
  }
  Status call_host(cuda::Stream stream, void (*function)(void*), void* argument) override {
    enqueue(stream, [function, argument] { function(argument); });
    return {};
  }

  Status load_kernels() override { return {}; }
  Status launch(const kernels::FoldParameters& parameters, cuda::Stream stream) override { return run(parameters, stream); }
  Status launch(const kernels::CopyParameters& parameters, cuda::Stream stream) override { return run(parameters, stream); }
  Status launch(const kernels::FusedParameters& parameters, cuda::Stream stream) override {
    enqueue(stream, [p = parameters]() mutable {
      if (std::atomic_ref(*p.cancelled).load() != 0) return;
      ++steps;
      p.input = host_pointer(p.input);
      p.output = host_pointer(p.output);
      for (int r = 0; r < p.ranks; ++r) {
        p.staging[r] = host_pointer(p.staging[r]);
        p.results[r] = host_pointer(p.results[r]);
        p.flags[r] = host_pointer(p.flags[r]);
      }
      static_cast<void>(kernels::run_on_host(p, kKernelThreads));
    });
    return {};
  }

 private:
  template <typename Parameters>
  static Status run(const Parameters& parameters, cuda::Stream stream) {
    enqueue(stream, [parameters] {
      if (parameters.cancelled != nullptr && std::atomic_ref(*const_cast<std::uint32_t*>(parameters.cancelled)).load() != 0)
        return;
      ++steps;
      kernels::run_on_host(
          parameters, [](auto* address) { return host_pointer(address); }, kKernelThreads);
    });
    return {};
  }
};

}  // namespace

CudaBehaviour& cuda_behaviour() {
  static CudaBehaviour behaviour;
  return behaviour;
}

int steps_for_shoal() { return steps; }

}  // namespace shoal::fake

extern "C" shoal::cuda::CudaApi* shoal_cuda_api(int version, char* message, std::size_t message_bytes) {
  static auto& api = *new shoal::fake::FakeDeviceCuda;
  if (version == shoal::cuda::kCudaApiVersion) return &api;
  std::strncpy(message, "the fake CUDA has another version", message_bytes - 1);
  return nullptr;
}
