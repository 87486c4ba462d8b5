// The real CudaApi. The runtime is linked statically and the driver's functions are asked for by name, so that this library
// loads on a machine without a driver and says so.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/launch.h"
#include "src/cuda/cuda_api.h"

namespace shoal::cuda {
namespace {

Status runtime_error(const char* call, cudaError_t error) {
  const bool lacking = error == cudaErrorNotSupported || error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                       error == cudaErrorPeerAccessUnsupported;
  return {lacking ? StatusCode::unsupported : StatusCode::system_error,
          std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")"};
}

Status driver_error(const char* call, CUresult error) {
  return {error == CUDA_ERROR_NOT_SUPPORTED ? StatusCode::unsupported : StatusCode::system_error,
          std::string(call) + ": the driver's error " + std::to_string(static_cast<int>(error))};
}

/// ok, or the error of `call`. What is not sticky is taken away, so that the next call does not report it again.
Status checked(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return runtime_error(call, error);
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

/// The driver's functions that the runtime has no name for.
struct DriverFunctions {
  decltype(&::cuStreamBatchMemOp) batch_memory_operations = nullptr;
  decltype(&::cuPointerGetAttribute) pointer_attribute = nullptr;
  decltype(&::cuMemGetAddressRange) address_range = nullptr;

  template <typename F>
  static Status find(const char* name, F& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult outcome{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &outcome);
    if (error != cudaSuccess) return checked("cudaGetDriverEntryPointByVersion", error);
    if (outcome != cudaDriverEntryPointSuccess || found == nullptr)
      return {StatusCode::unsupported, std::string("the driver has no ") + name + ": it is older than CUDA 12"};
    function = reinterpret_cast<F>(found);
    return {};
  }
};

/// Another thread may be capturing a graph, whose capture an ordinary question about an event would spoil.
class BesideCapture {
 public:
  BesideCapture() { exchange(); }
  ~BesideCapture() { exchange(); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  void exchange() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class RuntimeApi final : public CudaApi {
 public:
  Status load() {
    int count = 0;
    if (Status status = checked("cudaGetDeviceCount", cudaGetDeviceCount(&count)); !status.ok()) return status;
    if (count == 0) return {StatusCode::unsupported, "there is no GPU"};
    if (Status status = DriverFunctions::find("cuStreamBatchMemOp", driver_.batch_memory_operations); !status.ok())
      return status;
    if (Status status = DriverFunctions::find("cuPointerGetAttribute", driver_.pointer_attribute); !status.ok()) return status;
    return DriverFunctions::find("cuMemGetAddressRange", driver_.address_range);
  }

  Result<int> device_count() override {
    int count = 0;
    if (Status status = checked("cudaGetDeviceCount", cudaGetDeviceCount(&count)); !status.ok()) return status;
    return count;
  }
  Result<int> current_device() override {
    int device = 0;
    if (Status status = checked("cudaGetDevice", cudaGetDevice(&device)); !status.ok()) return status;
    return device;
  }
  Status use_device(int device) override { return checked("cudaSetDevice", cudaSetDevice(device)); }

  Result<DeviceDescription> describe_device(int device) override {
    cudaDeviceProp properties{};
    if (Status status = checked("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, device)); !status.ok())
      return status;
    DeviceDescription description;
    description.name = properties.name;
    std::memcpy(description.uuid.data(), properties.uuid.bytes, description.uuid.size());
    description.processors = properties.multiProcessorCount;
    description.major = properties.major;
    description.minor = properties.minor;
    return description;
  }

  Result<PointerDescription> describe_pointer(const void* pointer) override {
    cudaPointerAttributes attributes{};
    if (Status status = checked("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, pointer)); !status.ok())
      return status;
    PointerDescription description;
    if (attributes.type == cudaMemoryTypeManaged) description.kind = MemoryKind::managed;
    if (attributes.type == cudaMemoryTypeDevice) description.kind = MemoryKind::device;
    if (description.kind == MemoryKind::host) return description;
    description.device = attributes.device;
    const auto address = reinterpret_cast<CUdeviceptr>(pointer);
    CUdeviceptr base = 0;
    if (const CUresult error = driver_.address_range(&base, &description.bytes, address); error != CUDA_SUCCESS)
      return driver_error("cuMemGetAddressRange", error);
    description.base = reinterpret_cast<std::byte*>(base);
    unsigned long long id = 0;
    if (const CUresult error = driver_.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address); error != CUDA_SUCCESS)
      return driver_error("cuPointerGetAttribute", error);
    description.allocation = id;
    return description;
  }

  Result<bool> can_access_peer(int device, int peer) override {
    if (device == peer) return true;
    int can = 0;
    if (Status status = checked("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, device, peer)); !status.ok())
      return status;
    return can != 0;
  }

  Result<void*> allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (Status status = checked("cudaMalloc", cudaMalloc(&memory, bytes)); !status.ok()) return status;
    return memory;
  }
  Status release(void* memory) override { return checked("cudaFree", cudaFree(memory)); }
  Result<void*> allocate_pinned(std::size_t bytes) override {
    void* memory = nullptr;
    const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    if (Status status = checked("cudaHostAlloc", cudaHostAlloc(&memory, bytes, flags)); !status.ok()) return status;
    return memory;
  }
  Status release_pinned(void* memory) override { return checked("cudaFreeHost", cudaFreeHost(memory)); }
  Status pin(void* memory, std::size_t bytes) override {
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    if (Status status = checked("cudaHostRegister", cudaHostRegister(memory, bytes, flags)); !status.ok()) return status;
    void* mapped = nullptr;
    if (Status status = checked("cudaHostGetDevicePointer", cudaHostGetDevicePointer(&mapped, memory, 0)); !status.ok())
      return status;
    if (mapped == memory) return {};
    static_cast<void>(cudaHostUnregister(memory));
    return {StatusCode::unsupported, "the device sees pinned memory at another address than the host"};
  }
  Status unpin(void* memory) override { return checked("cudaHostUnregister", cudaHostUnregister(memory)); }

  Result<MemoryHandle> export_memory(void* base) override {
    cudaIpcMemHandle_t handle{};
    static_assert(sizeof handle == sizeof(MemoryHandle));
    const cudaError_t error = cudaIpcGetMemHandle(&handle, base);
    if (error == cudaErrorInvalidValue || error == cudaErrorNotSupported) {
      static_cast<void>(cudaGetLastError());
      return Status(StatusCode::unsupported,
                    "cudaIpcGetMemHandle: this memory cannot be given to other processes (made by "
                    "cuMemCreate or cudaMallocAsync?)");
    }
    if (Status status = checked("cudaIpcGetMemHandle", error); !status.ok()) return status;
    MemoryHandle given;
    std::memcpy(given.bytes.data(), &handle, sizeof handle);
    return given;
  }
  Result<void*> import_memory(const MemoryHandle& handle) override {
    cudaIpcMemHandle_t given{};
    std::memcpy(&given, handle.bytes.data(), sizeof given);
    void* memory = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&memory, given, cudaIpcMemLazyEnablePeerAccess);
    if (Status status = checked("cudaIpcOpenMemHandle", error); !status.ok()) return status;
    return memory;
  }
  Status forget_memory(void* imported) override { return checked("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(imported)); }

  Result<Stream> create_stream(bool urgent) override {
    int least = 0;
    int greatest = 0;
    if (Status status = checked("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
        !status.ok())
      return status;
    cudaStream_t stream = nullptr;
    const cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least);
    if (Status status = checked("cudaStreamCreateWithPriority", error); !status.ok()) return status;
    return static_cast<Stream>(stream);
  }
  Status destroy_stream(Stream stream) override { return checked("cudaStreamDestroy", cudaStreamDestroy(native(stream))); }
  Status synchronize(Stream stream) override { return checked("cudaStreamSynchronize", cudaStreamSynchronize(native(stream))); }
  Result<bool> is_capturing(Stream stream) override {
    cudaStreamCaptureStatus status{};
    const cudaError_t error = cudaStreamIsCapturing(native(stream), &status);
    if (error == cudaErrorStreamCaptureImplicit) {  // the default stream, while another one that it would wait for is captured
      static_cast<void>(cudaGetLastError());
      return true;
    }
    if (Status failed = checked("cudaStreamIsCapturing", error); !failed.ok()) return failed;
    return status != cudaStreamCaptureStatusNone;
  }

  Result<Event> create_event() override {
    cudaEvent_t event = nullptr;
    const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
    if (Status status = checked("cudaEventCreate", cudaEventCreateWithFlags(&event, flags)); !status.ok()) return status;
    return static_cast<Event>(event);
  }
  Status destroy_event(Event event) override { return checked("cudaEventDestroy", cudaEventDestroy(native_event(event))); }
  Status record(Event event, Stream stream) override {
    return checked("cudaEventRecord", cudaEventRecord(native_event(event), native(stream)));
  }
  Status wait(Stream stream, Event event) override {
    return checked("cudaStreamWaitEvent", cudaStreamWaitEvent(native(stream), native_event(event), 0));
  }
  Result<bool> has_happened(Event event) override {
    const BesideCapture others_go_on;
    const cudaError_t error = cudaEventQuery(native_event(event));
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    if (Status status = checked("cudaEventQuery", error); !status.ok()) return status;
    return true;
  }

  Status wait_host(Event event) override {
    const BesideCapture others_go_on;
    return checked("cudaEventSynchronize", cudaEventSynchronize(native_event(event)));
  }

  Status flags(Stream stream, std::span<const FlagOperation> operations) override {
    constexpr std::size_t kMost = 64;
    CUstreamBatchMemOpParams batch[kMost];
    while (!operations.empty()) {
      const std::size_t count = operations.size() < kMost ? operations.size() : kMost;
      std::memset(batch, 0, sizeof batch);
      for (std::size_t i = 0; i < count; ++i) {
        const FlagOperation& wanted = operations[i];
        const auto address = reinterpret_cast<CUdeviceptr>(wanted.flag);
        if (wanted.kind == FlagOperation::Kind::write) {
          // The default flags put a barrier before the write: what the stream has done is visible to all before the flag is.
          batch[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
          batch[i].writeValue.address = address;
          batch[i].writeValue.value = wanted.value;
          batch[i].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
        } else {
          batch[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
          batch[i].waitValue.address = address;
          batch[i].waitValue.value = wanted.value;
          batch[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
        }
      }
      const CUresult error =
          driver_.batch_memory_operations(reinterpret_cast<CUstream>(stream), static_cast<unsigned>(count), batch, 0);
      if (error != CUDA_SUCCESS) return driver_error("cuStreamBatchMemOp", error);
      operations = operations.subspan(count);
    }
    return {};
  }
  Status copy(void* target, const void* source, std::size_t bytes, Stream stream) override {
    return checked("cudaMemcpyAsync", cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, native(stream)));
  }
  Status call_host(Stream stream, void (*function)(void*), void* argument) override {
    return checked("cudaLaunchHostFunc", cudaLaunchHostFunc(native(stream), function, argument));
  }

  Status load_kernels() override { return checked("loading the kernels", kernels::load_all()); }
  Status launch(const kernels::FoldParameters& parameters, Stream stream) override {
    return checked("reduce_nway", kernels::launch(parameters, native(stream)));
  }
  Status launch(const kernels::CopyParameters& parameters, Stream stream) override {
    return checked("copy_segments", kernels::launch(parameters, native(stream)));
  }
  Status launch(const kernels::FusedParameters& parameters, Stream stream) override {
    return checked("all_reduce_fused", kernels::launch(parameters, native(stream)));
  }

 private:
  DriverFunctions driver_;
};

}  // namespace
}  // namespace shoal::cuda

extern "C" __attribute__((visibility("default"))) shoal::cuda::CudaApi* shoal_cuda_api(int version, char* message,
                                                                                       std::size_t message_bytes) {
  if (version != shoal::cuda::kCudaApiVersion) {
    std::snprintf(message, message_bytes, "libshoal_cuda.so has interface %d, libshoal.so wants %d",
                  shoal::cuda::kCudaApiVersion, version);
    return nullptr;
  }
  static shoal::cuda::RuntimeApi* const api = new shoal::cuda::RuntimeApi();  // never destroyed: streams may outlive main()
  const shoal::Status status = api->load();
  if (status.ok()) return api;
  std::snprintf(message, message_bytes, "%s", status.message().c_str());
  return nullptr;
}
