// The real CudaApi. The runtime is linked statically and the driver's functions are looked up by name, so that this library
// loads on a machine without a driver and reports that.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

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
          std::string(call) + ": driver error " + std::to_string(static_cast<int>(error))};
}

/// ok, or the error of `call`. An error that is not sticky is cleared, so that the next call does not report it again.
Status checked(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return runtime_error(call, error);
}

/// Attributes for which not all headers of the runtime have names: cudaDevAttrMpsEnabled,
/// CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS.
constexpr auto kMpsEnabled = static_cast<cudaDeviceAttr>(133);
constexpr auto kDescriptors = static_cast<cudaDeviceAttr>(103);
constexpr auto kStreamMemory = static_cast<cudaDeviceAttr>(122);

/// Drivers that do not know the attribute do not have the ability either.
bool has(int device, cudaDeviceAttr attribute) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess) return value != 0;
  static_cast<void>(cudaGetLastError());
  return false;
}

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

/// The driver's functions that the runtime has no name for.
struct DriverFunctions {
  decltype(&::cuStreamBatchMemOp) batch_memory_operations = nullptr;
  decltype(&::cuPointerGetAttribute) pointer_attribute = nullptr;
  decltype(&::cuMemGetAddressRange) address_range = nullptr;
  // Of memory that cuMemCreate has made.
  decltype(&::cuMemRetainAllocationHandle) retain_handle = nullptr;
  decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&::cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&::cuMemAddressReserve) reserve_addresses = nullptr;
  decltype(&::cuMemAddressFree) free_addresses = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemRelease) release_handle = nullptr;

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

  Status find_all() {
    Status status;
    const auto also = [&](const char* name, auto& function) {
      if (status.ok()) status = find(name, function);
    };
    also("cuStreamBatchMemOp", batch_memory_operations);
    also("cuPointerGetAttribute", pointer_attribute);
    also("cuMemGetAddressRange", address_range);
    also("cuMemRetainAllocationHandle", retain_handle);
    also("cuMemExportToShareableHandle", export_handle);
    also("cuMemImportFromShareableHandle", import_handle);
    also("cuMemAddressReserve", reserve_addresses);
    also("cuMemAddressFree", free_addresses);
    also("cuMemMap", map);
    also("cuMemUnmap", unmap);
    also("cuMemSetAccess", set_access);
    also("cuMemRelease", release_handle);
    return status;
  }
};

/// Another thread may be capturing a graph, and an ordinary query of an event would invalidate that capture.
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
    return driver_.find_all();
  }

  Result<int> driver_version() override {
    int version = 0;
    if (Status status = checked("cudaDriverGetVersion", cudaDriverGetVersion(&version)); !status.ok()) return status;
    return version;
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
    description.ipc = has(device, cudaDevAttrIpcEventSupport);
    description.descriptors = has(device, kDescriptors);
    description.stream_memory = has(device, kStreamMemory);
    description.mps = has(device, kMpsEnabled);
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
    unsigned long long id = 0;  // stays 0 where the driver has none for this kind of memory: such memory is not registered
    static_cast<void>(driver_.pointer_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    description.allocation = id;
    int by_ipc = 1;
    static_cast<void>(driver_.pointer_attribute(&by_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    description.mapped = by_ipc == 0;
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
    static_assert(sizeof handle == sizeof(MemoryHandle::bytes));
    const cudaError_t error = cudaIpcGetMemHandle(&handle, base);
    if (error == cudaErrorInvalidValue || error == cudaErrorNotSupported) {
      static_cast<void>(cudaGetLastError());
      return export_mapping(base);
    }
    if (Status status = checked("cudaIpcGetMemHandle", error); !status.ok()) return status;
    MemoryHandle given;
    std::memcpy(given.bytes.data(), &handle, sizeof handle);
    return given;
  }
  Result<void*> import_memory(const MemoryHandle& handle) override {
    if (handle.descriptor >= 0) return import_mapping(handle);
    cudaIpcMemHandle_t given{};
    std::memcpy(&given, handle.bytes.data(), sizeof given);
    void* memory = nullptr;
    const cudaError_t error = cudaIpcOpenMemHandle(&memory, given, cudaIpcMemLazyEnablePeerAccess);
    if (Status status = checked("cudaIpcOpenMemHandle", error); !status.ok()) return status;
    return memory;
  }
  Status forget_memory(void* imported) override {
    std::size_t bytes = 0;
    {
      const std::scoped_lock lock(mappings_mutex_);
      const auto found = mappings_.find(imported);
      if (found == mappings_.end()) return checked("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(imported));
      bytes = found->second;
      mappings_.erase(found);
    }
    const auto address = reinterpret_cast<CUdeviceptr>(imported);
    if (const CUresult error = driver_.unmap(address, bytes); error != CUDA_SUCCESS) return driver_error("cuMemUnmap", error);
    const CUresult error = driver_.free_addresses(address, bytes);
    return error == CUDA_SUCCESS ? Status() : driver_error("cuMemAddressFree", error);
  }

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
  /// Exports memory of cuMemCreate, the mapping at `base`, as a descriptor.
  Result<MemoryHandle> export_mapping(void* base) {
    const auto refused = [](const char* call, CUresult error) {
      return Status(StatusCode::unsupported,
                    std::string(call) + ": driver error " + std::to_string(static_cast<int>(error)) +
                        ": this memory cannot be given to other processes (made by cudaMallocAsync, or by cuMemCreate without "
                        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR?)");
    };
    CUdeviceptr begin = 0;
    std::size_t bytes = 0;
    const CUresult ranged = driver_.address_range(&begin, &bytes, reinterpret_cast<CUdeviceptr>(base));
    if (ranged != CUDA_SUCCESS) return driver_error("cuMemGetAddressRange", ranged);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult retained = driver_.retain_handle(&handle, base);
    if (retained != CUDA_SUCCESS) return refused("cuMemRetainAllocationHandle", retained);
    int descriptor = -1;
    const CUresult exported = driver_.export_handle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    static_cast<void>(driver_.release_handle(handle));
    if (exported != CUDA_SUCCESS) return refused("cuMemExportToShareableHandle", exported);
    MemoryHandle given;
    given.size = bytes;
    given.descriptor = descriptor;
    return given;
  }

  /// Maps memory of cuMemCreate. The mapping keeps the memory, so the handle is released at once.
  Result<void*> import_mapping(const MemoryHandle& given) {
    int device = 0;
    if (Status status = checked("cudaGetDevice", cudaGetDevice(&device)); !status.ok()) return status;
    CUmemGenericAllocationHandle handle = 0;
    auto* descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(given.descriptor));
    const CUresult imported = driver_.import_handle(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (imported != CUDA_SUCCESS) return driver_error("cuMemImportFromShareableHandle", imported);
    CUdeviceptr address = 0;
    const char* call = "cuMemAddressReserve";
    CUresult error = driver_.reserve_addresses(&address, given.size, 0, 0, 0);
    const bool reserved = error == CUDA_SUCCESS;
    bool mapped = false;
    if (error == CUDA_SUCCESS) {
      call = "cuMemMap";
      error = driver_.map(address, given.size, 0, handle, 0);
      mapped = error == CUDA_SUCCESS;
    }
    if (error == CUDA_SUCCESS) {
      call = "cuMemSetAccess";
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      error = driver_.set_access(address, given.size, &access, 1);
    }
    static_cast<void>(driver_.release_handle(handle));
    auto* memory = reinterpret_cast<void*>(address);
    if (error == CUDA_SUCCESS) {
      const std::scoped_lock lock(mappings_mutex_);
      mappings_[memory] = given.size;
      return memory;
    }
    if (mapped) static_cast<void>(driver_.unmap(address, given.size));
    if (reserved) static_cast<void>(driver_.free_addresses(address, given.size));
    return driver_error(call, error);
  }

  DriverFunctions driver_;
  std::mutex mappings_mutex_;
  std::map<void*, std::size_t> mappings_;  ///< imported descriptors, and how many bytes each holds
};

}  // namespace
}  // namespace shoal::cuda

extern "C" __attribute__((visibility("default"))) shoal::cuda::CudaApi* shoal_cuda_api(int version, char* message,
                                                                                       std::size_t message_bytes) {
  if (version != shoal::cuda::kCudaApiVersion) {
    std::snprintf(message, message_bytes, "libshoal_cuda.so has interface version %d, libshoal.so needs version %d",
                  shoal::cuda::kCudaApiVersion, version);
    return nullptr;
  }
  static shoal::cuda::RuntimeApi* const api = new shoal::cuda::RuntimeApi();  // never destroyed: streams may outlive main()
  const shoal::Status status = api->load();
  if (status.ok()) return api;
  std::snprintf(message, message_bytes, "%s", status.message().c_str());
  return nullptr;
}
